#include "app/plugins/roles.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "app/plugins/option_value.h"
#include "app/plugins/words.h"
#include "kit/digest.h"

namespace engine::plugins {
namespace {

using plugin::PluginChoice;
using plugin::PluginEntry;

// The roles that exactly one plugin fills, by the kind of that plugin.
struct Role {
  const char* name;
  PluginKind kind;
  PluginChoice plugin::PluginSelection::*choice;  // null for the ops with a device
};

constexpr Role kRoles[] = {
    {"ops with a device", PluginKind::kOps, nullptr},
    {"communicator", PluginKind::kCommunicator, &plugin::PluginSelection::communicator},
    {"optimizer", PluginKind::kOptimizer, &plugin::PluginSelection::optimizer},
    {"scheduler", PluginKind::kScheduler, &plugin::PluginSelection::scheduler}};

Result<PluginChoice> FillRole(const Role& role, const std::vector<PluginChoice>& chosen,
                              const PluginCatalog& catalog) {
  const auto fills = [&](const PluginEntry& entry) {
    return entry.kind == role.kind && FillsRole(entry);
  };
  const PluginChoice* filled = nullptr;
  for (const PluginChoice& choice : chosen) {
    if (!fills(choice.entry)) continue;
    if (filled != nullptr) {
      return Status::Error(StatusCode::kPlugin,
                           "plugins '%s' and '%s' both fill the role '%s'; choose one",
                           filled->entry.name.c_str(), choice.entry.name.c_str(), role.name);
    }
    filled = &choice;
  }
  if (filled != nullptr) return *filled;
  std::vector<std::string> candidates;
  for (const PluginFile& file : catalog.files()) {
    if (file.problem.ok() && !file.shadowed && fills(file)) candidates.push_back(file.name);
  }
  return Status::Error(StatusCode::kPlugin, "no chosen plugin fills the role '%s'; found: %s",
                       role.name, candidates.empty() ? "none" : Join(candidates).c_str());
}

Status CheckDistinct(const std::vector<PluginChoice>& chosen) {
  std::set<std::string> names;
  for (const PluginChoice& choice : chosen) {
    if (names.insert(choice.entry.name).second) continue;
    return Status::Error(StatusCode::kPlugin, "%s is chosen twice", choice.entry.Title().c_str());
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

Status CheckOpsDistinct(const std::vector<PluginChoice>& plugins) {
  std::map<std::string, const PluginEntry*> offered;
  for (const PluginChoice& choice : plugins) {
    for (const std::string& op : choice.entry.ops) {
      const auto [it, inserted] = offered.emplace(op, &choice.entry);
      if (inserted) continue;
      return Status::Error(StatusCode::kPlugin, "plugins '%s' and '%s' both offer the op '%s'",
                           it->second->name.c_str(), choice.entry.name.c_str(), op.c_str());
    }
  }
  return {};
}

// Each before those inside of it, and once: several may hold the same one.
void AddWithInner(const PluginChoice& choice, std::vector<const PluginEntry*>* all) {
  const auto same = [&](const PluginEntry* one) { return one->name == choice.entry.name; };
  if (std::none_of(all->begin(), all->end(), same)) all->push_back(&choice.entry);
  for (const PluginChoice& inner : choice.inner) AddWithInner(inner, all);
}

}  // namespace

void UseNetwork(const HostNetwork& network, plugin::PluginChoice* communicator) {
  std::string *interface = nullptr, *hostname = nullptr;
  for (plugin::OwnedOption& option : communicator->options) {
    if (option.name == "interface") interface = &option.string;
    if (option.name == "hostname") hostname = &option.string;
  }
  if (interface != nullptr && hostname != nullptr && interface->empty() && hostname->empty()) {
    *(network.interface.empty() ? hostname : interface) =
        network.interface.empty() ? network.address : network.interface;
  }
  for (plugin::PluginChoice& inner : communicator->inner) UseNetwork(network, &inner);
}

std::vector<const PluginEntry*> EntriesOf(const plugin::PluginSelection& selection) {
  std::vector<const PluginEntry*> all;
  for (const auto* one : {&selection.communicator, &selection.scheduler, &selection.optimizer}) {
    AddWithInner(*one, &all);
  }
  for (const PluginChoice& choice : selection.ops) AddWithInner(choice, &all);
  for (const PluginChoice& choice : selection.hooks) AddWithInner(choice, &all);
  all.push_back(&selection.dataset.entry);
  all.push_back(&selection.model.entry);
  return all;
}

bool FillsRole(const PluginEntry& entry) {
  return entry.kind == PluginKind::kOps ? entry.brings_device() : entry.kind != PluginKind::kHook;
}

Result<plugin::PluginSelection> AssignRoles(const std::vector<PluginChoice>& chosen,
                                            const PluginCatalog& catalog) {
  ENGINE_RETURN_IF_ERROR(CheckDistinct(chosen));
  for (const PluginChoice& choice : chosen) ENGINE_RETURN_IF_ERROR(CheckHasRole(choice.entry));
  plugin::PluginSelection selection{.resolve_op = ResolveOp};
  for (const Role& role : kRoles) {
    ENGINE_ASSIGN_OR_RETURN(PluginChoice filled, FillRole(role, chosen, catalog));
    // The device comes first: further op plugins may ask their Host for it while they are made.
    PluginChoice& place = role.choice ? selection.*role.choice : selection.ops.emplace_back();
    place = std::move(filled);
  }
  for (const PluginChoice& choice : chosen) {
    if (choice.entry.kind == PluginKind::kHook) selection.hooks.push_back(choice);
    if (choice.entry.kind == PluginKind::kOps && !choice.entry.brings_device()) {
      selection.ops.push_back(choice);
    }
  }
  ENGINE_RETURN_IF_ERROR(CheckOpsDistinct(selection.ops));
  return selection;
}

std::string NamesOf(const plugin::PluginSelection& selection) {
  std::vector<std::string> names;
  for (const PluginEntry* entry : EntriesOf(selection)) names.push_back(entry->name);
  return Join(names, " ");
}

// One that cannot be read has no digest: whoever loads it says why.
std::string VersionsOf(const plugin::PluginSelection& selection) {
  std::string lines;
  for (const PluginEntry* entry : EntriesOf(selection)) {
    std::ifstream file(entry->path, std::ios::binary);
    kit::Digest digest;
    for (std::array<char, 1 << 16> block; file.good();) {
      file.read(block.data(), block.size());
      digest.Add(block.data(), static_cast<size_t>(file.gcount()));
    }
    lines.append(entry->name + " " + entry->version + ", file " + digest.Text() + "\n");
  }
  return lines;
}

Result<plugin::ResolvedOp> ResolveOp(const std::vector<PluginChoice>& plugins,
                                     const std::string& name,
                                     const std::vector<plugin::OwnedOption>& given) {
  std::vector<std::string> offered;
  for (size_t i = 0; i < plugins.size(); ++i) {
    const PluginEntry& entry = plugins[i].entry;
    offered.insert(offered.end(), entry.ops.begin(), entry.ops.end());
    if (std::find(entry.ops.begin(), entry.ops.end(), name) == entry.ops.end()) continue;
    ENGINE_ASSIGN_OR_RETURN(auto attributes, CompleteAttributes(entry, name, given));
    return plugin::ResolvedOp{i, std::move(attributes)};
  }
  return Status::Error(StatusCode::kConfig, "no chosen plugin offers the op '%s'%s", name.c_str(),
                       DidYouMean(name, offered).c_str());
}

}  // namespace engine::plugins
