// The plugins of one run: what is known of their files, which were chosen, and one rank's objects.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/call_watch.h"
#include "engine/communicator.h"
#include "engine/ext/inner_plugins.h"
#include "engine/gradient_hook.h"
#include "engine/op.h"
#include "engine/optimizer.h"
#include "engine/options.h"
#include "engine/plugin.h"
#include "engine/scheduler.h"

namespace engine::plugin {

struct PluginChoice;
class PluginHost;

// A library that can be loaded, as the descriptor in its file says. Whoever made the entry has
// checked the descriptor and says how it is loaded, and what its Host offers (app/plugins).
struct PluginEntry {
  // Loads the library, unless that was done. kPlugin names the file and what is wrong. [any-thread]
  Result<CreateFunction> (*load)(const PluginEntry& entry) = nullptr;
  // What `host`, of an object of `outer`, answers to Query(InnerPlugins::kId). Borrows all.
  std::shared_ptr<InnerPlugins> (*make_inner)(const PluginChoice& outer,
                                              PluginHost& host) = nullptr;
  std::string path;  // absolute
  std::string name;
  PluginKind kind = PluginKind::kCommunicator;
  std::string version, device;
  std::vector<std::string> ops;
  std::vector<OptionSpec> options;  // of the plugin (empty scope) and of its ops

  std::string Title() const { return "plugin '" + name + "'"; }  // for messages
  bool brings_device() const { return kind == PluginKind::kOps && device != "any"; }
};

// No memory that a plugin asks for is larger.
constexpr int64_t kMaxBytes = int64_t{1} << 44;

// What a plugin answers, with kPlugin in place of what only the engine may say, or nobody. Who
// answered belongs in front of it.
Status Answer(const Status& answer);
// The kPlugin of a plugin (`kind`, `name`) that describes `what`.
Status BadAnswer(const char* kind, const std::string& name, const char* what);

// Whether an enum that a plugin answers is one of those up to `last`.
template <typename Enum>
constexpr bool IsKnown(Enum value, Enum last) {
  return static_cast<uint32_t>(value) <= static_cast<uint32_t>(last);
}

// Whether a tensor can be so: each extent at least 1, and sums of sizes far from an overflow.
bool CanBe(const Shape& shape, DType dtype);

// An option's value with its own storage.
struct OwnedOption {
  std::string name;
  OptionType type = OptionType::kString;
  int64_t integer = 0;
  double number = 0;
  std::string string;
  std::vector<int64_t> integers;
  std::shared_ptr<const std::vector<LayerSpec>> layers;  // owns what its views point to as well
};

// Borrowed views of `owned`, for a call across the boundary.
std::vector<OptionValue> Views(const std::vector<OwnedOption>& owned);
// With storage of their own; but for layers, which only a file can give.
std::vector<OwnedOption> Own(Array<const OptionValue> values);

// Makes the op `name` with `attributes` (those not given have their defaults). kConfig names the op
// or attribute that is unknown.
using OpFactory = std::function<Result<std::unique_ptr<Op>>(
    const std::string& name, const std::vector<OwnedOption>& attributes)>;

// A plugin with the values of its options, all of them, in the order they are published.
struct PluginChoice {
  PluginEntry entry;
  std::vector<OwnedOption> options;
  std::string origin = {};  // of its block, "run.pbtxt:3" or "--set"; empty: it has none
  // The plugins that its options of type kPlugin name, with those options that the user gave or that
  // have a default.
  std::vector<PluginChoice> inner = {};
};

// An op of the chosen plugins with all attributes that are published for it.
struct ResolvedOp {
  size_t plugin = 0;  // of PluginSelection::ops
  std::vector<OwnedOption> attributes;
};

// The op `name` of `plugins`; attributes that are not given have their published defaults. kConfig
// when there is none, or when an attribute is unknown or out of its range.
using ResolveOp = Result<ResolvedOp> (*)(const std::vector<PluginChoice>& plugins,
                                         const std::string& name,
                                         const std::vector<OwnedOption>& given);

// What the user chose, one per role.
struct PluginSelection {
  std::vector<PluginChoice> ops;  // the one that brings the device first; no op is offered twice
  PluginChoice communicator, scheduler, optimizer;
  std::vector<PluginChoice> hooks;  // in configured order
  PluginChoice dataset, model;
  ResolveOp resolve_op = nullptr;  // for the ops that a model names
  std::string versions;  // of all, and digests of their files, in lines as members compare them

  std::vector<std::string> HookNames() const;
};

// One rank's objects, the device that one of the ops brings among them, in the order of their
// creation.
struct PluginSet {
  std::vector<std::unique_ptr<OpLibrary>> ops;  // in the order of PluginSelection::ops
  Device* device = nullptr;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<std::unique_ptr<GradientHook>> hooks;
  std::unique_ptr<Scheduler> scheduler;
  base::CallWatch* watch = nullptr;  // null: calls are not watched
};

}  // namespace engine::plugin
