// The plugins of one run: chosen, loaded, and instantiated for one rank.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/plugin/catalog.h"
#include "engine/communicator.h"
#include "engine/gradient_hook.h"
#include "engine/op.h"
#include "engine/optimizer.h"
#include "engine/scheduler.h"

namespace engine {

// An option's value with its own storage.
struct OwnedOption {
  std::string name;
  OptionType type = OptionType::kString;
  int64_t integer = 0;
  double number = 0;
  std::string string;
};

// Borrowed views of `owned`, for a call across the boundary.
std::vector<OptionValue> Views(const std::vector<OwnedOption>& owned);

// A plugin with the values of its options, all of them, in the order they are published.
struct PluginChoice {
  PluginEntry entry;
  std::vector<OwnedOption> options;
};

// What the user chose, one per role.
struct PluginSelection {
  std::vector<PluginChoice> ops;  // exactly one of them brings the device
  PluginChoice communicator, scheduler, optimizer;
  std::vector<PluginChoice> hooks;  // in configured order
};

// A library in memory. Never unloaded while the process lives (docs/plugin_abi.md says why).
class LoadedPlugin {
 public:
  // Through Boost.DLL with RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE; checks that what was loaded is
  // what the entry described. kPlugin names file and cause.
  static Result<std::shared_ptr<LoadedPlugin>> Load(const PluginEntry& entry);
  virtual ~LoadedPlugin() = default;
  // kPlugin or the plugin's own error, with its name in front.
  virtual Result<std::unique_ptr<Object>> Create(Host& host, const Options& options) const = 0;
};

// One rank's instances. Destroyed in reverse order of creation.
struct PluginSet {
  PluginSet() = default;
  PluginSet(PluginSet&&) = default;
  PluginSet& operator=(PluginSet&& other) noexcept;
  ~PluginSet() { Clear(); }
  void Clear() noexcept;

  std::vector<std::unique_ptr<OpLibrary>> ops;  // the one with the device first
  Device* device = nullptr;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<std::unique_ptr<GradientHook>> hooks;
  std::unique_ptr<Scheduler> scheduler;
  // Which of `ops` provides an op, by name. kConfig with the nearest name when none does.
  Result<OpLibrary*> FindOp(const std::string& name) const;
  std::vector<std::pair<std::string, OpLibrary*>> op_index;  // sorted by name
};

}  // namespace engine
