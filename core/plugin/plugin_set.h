// The plugins of one run: chosen, loaded, and instantiated for one rank.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/plugin/catalog.h"
#include "core/plugin/loaded_plugin.h"
#include "core/plugin/option_value.h"
#include "engine/communicator.h"
#include "engine/gradient_hook.h"
#include "engine/op.h"
#include "engine/optimizer.h"
#include "engine/scheduler.h"

namespace engine::plugin {

// A plugin with the values of its options, all of them, in the order they are published.
struct PluginChoice {
  PluginEntry entry;
  std::vector<OwnedOption> options;
  std::string origin = {};  // of its block, "run.pbtxt:3" or "--set"; empty: it has none
};

// What the user chose, one per role.
struct PluginSelection {
  std::vector<PluginChoice> ops;  // exactly one of them brings the device
  PluginChoice communicator, scheduler, optimizer;
  std::vector<PluginChoice> hooks;  // in configured order
  PluginChoice dataset, model;
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

}  // namespace engine::plugin
