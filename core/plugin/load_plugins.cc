// Order of creation: the ops with the device, other ops, communicator, optimizer, hooks, scheduler;
// each may use what is there before it (the device, through its Host). Clear destroys in the
// reverse order, also when an object in the middle could not be made: nothing outlives what it may
// use. A library is never unloaded, so code and constants of an object outlive it.

#include "core/plugin/load_plugins.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/plugin/nearest.h"

namespace engine::plugin {
namespace {

bool BringsDevice(const PluginEntry& entry) {
  return entry.kind == PluginKind::kOps && entry.device != "any";
}

// A role that exactly one plugin must fill.
struct Role {
  const char* name;
  PluginKind kind;
  bool Takes(const PluginEntry& entry) const {
    return entry.kind == kind && (kind != PluginKind::kOps || BringsDevice(entry));
  }
};

constexpr Role kRoles[] = {{"ops with a device", PluginKind::kOps},
                           {"communicator", PluginKind::kCommunicator},
                           {"optimizer", PluginKind::kOptimizer},
                           {"scheduler", PluginKind::kScheduler}};

Result<PluginChoice> FillRole(const Role& role, const std::vector<PluginChoice>& chosen,
                              const PluginCatalog& catalog) {
  const PluginChoice* filled = nullptr;
  for (const PluginChoice& choice : chosen) {
    if (!role.Takes(choice.entry)) continue;
    if (filled != nullptr) {
      return Status::Error(StatusCode::kPlugin,
                           "plugins '%s' and '%s' both fill the role '%s'; choose one",
                           filled->entry.name.c_str(), choice.entry.name.c_str(), role.name);
    }
    filled = &choice;
  }
  if (filled != nullptr) return *filled;
  std::vector<std::string> candidates;
  for (const PluginEntry& entry : catalog.entries()) {
    if (entry.problem.ok() && !entry.shadowed && role.Takes(entry)) {
      candidates.push_back(entry.name);
    }
  }
  return Status::Error(StatusCode::kPlugin, "no chosen plugin fills the role '%s'; found: %s",
                       role.name, candidates.empty() ? "none" : Join(candidates).c_str());
}

Status CheckDistinct(const std::vector<PluginChoice>& chosen) {
  std::set<std::string> names;
  for (const PluginChoice& choice : chosen) {
    if (!names.insert(choice.entry.name).second) {
      return Status::Error(StatusCode::kPlugin, "plugin '%s' is chosen twice",
                           choice.entry.name.c_str());
    }
  }
  return {};
}

// Datasets and models are chosen by their blocks.
Status CheckHasRole(const PluginEntry& entry) {
  if (entry.kind <= PluginKind::kHook) return {};
  return Status::Error(StatusCode::kPlugin,
                       "plugin '%s' is a %s: choose it by its block, %s { %s { ... } }",
                       entry.name.c_str(), Name(entry.kind),
                       entry.kind == PluginKind::kModel ? "model" : "data", entry.name.c_str());
}

// Every op and the position of the plugin that offers it.
Result<std::map<std::string, size_t>> IndexOps(const std::vector<PluginChoice>& plugins) {
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < plugins.size(); ++i) {
    for (const std::string& op : plugins[i].entry.ops) {
      const auto [it, inserted] = index.emplace(op, i);
      if (inserted) continue;
      return Status::Error(StatusCode::kPlugin, "plugins '%s' and '%s' both offer the op '%s'",
                           plugins[it->second].entry.name.c_str(), plugins[i].entry.name.c_str(),
                           op.c_str());
    }
  }
  return index;
}

// Loads one library and makes its object, which by the contract of `kind` is a T.
template <typename T>
Status Make(const PluginChoice& choice, const HostFactory& host_of, std::unique_ptr<T>* out) {
  ENGINE_ASSIGN_OR_RETURN(const auto library, LoadedPlugin::Load(choice.entry));
  const std::vector<OptionValue> values = Views(choice.options);
  ENGINE_ASSIGN_OR_RETURN(auto object,
                          library->Create(host_of(choice.entry.name), Options(values)));
  out->reset(static_cast<T*>(object.release()));
  return {};
}

Status MakeOps(const std::vector<PluginChoice>& plugins, const HostFactory& host_of,
               const std::function<void(Device*)>& on_device, PluginSet* set) {
  for (const PluginChoice& choice : plugins) {
    set->ops.emplace_back();
    ENGINE_RETURN_IF_ERROR(Make(choice, host_of, &set->ops.back()));
    Device* device = set->ops.back()->device();
    if (BringsDevice(choice.entry) != (device != nullptr)) {
      return Status::Error(StatusCode::kPlugin, "plugin '%s' says device '%s' and brings %s",
                           choice.entry.name.c_str(), choice.entry.device.c_str(),
                           device != nullptr ? "one" : "none");
    }
    if (device == nullptr) continue;
    set->device = device;
    on_device(device);
  }
  return {};
}

}  // namespace

void PluginSet::Clear() noexcept {
  op_index.clear();
  scheduler.reset();
  while (!hooks.empty()) hooks.pop_back();
  optimizer.reset();
  communicator.reset();
  device = nullptr;
  while (!ops.empty()) ops.pop_back();
}

PluginSet& PluginSet::operator=(PluginSet&& other) noexcept {
  Clear();
  ops = std::move(other.ops);
  device = other.device;
  communicator = std::move(other.communicator);
  optimizer = std::move(other.optimizer);
  hooks = std::move(other.hooks);
  scheduler = std::move(other.scheduler);
  op_index = std::move(other.op_index);
  return *this;
}

Result<OpLibrary*> PluginSet::FindOp(const std::string& name) const {
  const auto it =
      std::lower_bound(op_index.begin(), op_index.end(), name,
                       [](const auto& item, const auto& key) { return item.first < key; });
  if (it != op_index.end() && it->first == name) return it->second;
  std::vector<std::string> names;
  for (const auto& item : op_index) names.push_back(item.first);
  return Status::Error(StatusCode::kConfig, "no chosen plugin offers the op '%s'%s", name.c_str(),
                       DidYouMean(name, names).c_str());
}

Result<PluginSelection> AssignRoles(const std::vector<PluginChoice>& chosen,
                                    const PluginCatalog& catalog) {
  ENGINE_RETURN_IF_ERROR(CheckDistinct(chosen));
  for (const PluginChoice& choice : chosen) ENGINE_RETURN_IF_ERROR(CheckHasRole(choice.entry));
  PluginSelection selection;
  PluginChoice device_ops;
  PluginChoice* const filled[] = {&device_ops, &selection.communicator, &selection.optimizer,
                                  &selection.scheduler};
  for (size_t i = 0; i < std::size(kRoles); ++i) {
    ENGINE_ASSIGN_OR_RETURN(*filled[i], FillRole(kRoles[i], chosen, catalog));
  }
  // The device comes first: further op plugins may ask their Host for it while they are made.
  selection.ops.push_back(std::move(device_ops));
  for (const PluginChoice& choice : chosen) {
    if (choice.entry.kind == PluginKind::kHook) selection.hooks.push_back(choice);
    if (choice.entry.kind == PluginKind::kOps && !BringsDevice(choice.entry)) {
      selection.ops.push_back(choice);
    }
  }
  const auto index = IndexOps(selection.ops);
  if (!index.ok()) return index.status();
  return selection;
}

Result<PluginSet> CreatePlugins(const PluginSelection& selection, const HostFactory& host_of,
                                const std::function<void(Device*)>& on_device) {
  ENGINE_ASSIGN_OR_RETURN(const auto index, IndexOps(selection.ops));
  PluginSet set;
  ENGINE_RETURN_IF_ERROR(MakeOps(selection.ops, host_of, on_device, &set));
  for (const auto& [op, position] : index) {
    set.op_index.emplace_back(op, set.ops[position].get());
  }
  ENGINE_RETURN_IF_ERROR(Make(selection.communicator, host_of, &set.communicator));
  ENGINE_RETURN_IF_ERROR(Make(selection.optimizer, host_of, &set.optimizer));
  for (const PluginChoice& choice : selection.hooks) {
    set.hooks.emplace_back();
    ENGINE_RETURN_IF_ERROR(Make(choice, host_of, &set.hooks.back()));
  }
  ENGINE_RETURN_IF_ERROR(Make(selection.scheduler, host_of, &set.scheduler));
  return set;
}

namespace {

// Of a plugin that its block chooses: a wrong value of an option is named with the block's place.
template <typename T>
Result<std::unique_ptr<T>> MakeOfBlock(const PluginChoice& choice, Host& host) {
  std::unique_ptr<T> made;
  const Status status = Make(
      choice, [&host](const std::string&) -> Host& { return host; }, &made);
  if (status.ok()) return made;
  const bool at_block = status.code() == StatusCode::kConfig && !choice.origin.empty();
  return at_block ? status.WithContext("%s", choice.origin.c_str()) : status;
}

}  // namespace

Result<std::unique_ptr<Dataset>> CreateDataset(const PluginChoice& choice, Host& host) {
  return MakeOfBlock<Dataset>(choice, host);
}

Result<std::unique_ptr<Model>> CreateModel(const PluginChoice& choice, Host& host) {
  return MakeOfBlock<Model>(choice, host);
}

Result<PluginSet> CreateServerPlugins(const PluginSelection& selection,
                                      const HostFactory& host_of) {
  PluginSet set;
  ENGINE_RETURN_IF_ERROR(Make(selection.communicator, host_of, &set.communicator));
  ENGINE_RETURN_IF_ERROR(Make(selection.optimizer, host_of, &set.optimizer));
  return set;
}

}  // namespace engine::plugin
