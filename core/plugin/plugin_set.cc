#include "core/plugin/plugin_set.h"

namespace engine::plugin {
namespace {

std::vector<const PluginChoice*> AllOf(const PluginSelection& selection) {
  std::vector<const PluginChoice*> chosen{&selection.communicator, &selection.scheduler,
                                          &selection.optimizer};
  for (const PluginChoice& ops : selection.ops) chosen.push_back(&ops);
  for (const PluginChoice& hook : selection.hooks) chosen.push_back(&hook);
  chosen.push_back(&selection.dataset);
  chosen.push_back(&selection.model);
  return chosen;
}

}  // namespace

// The views borrow names, texts and lists from `owned`, which must neither change nor move while
// they are in use; an object of a plugin copies what it keeps.
std::vector<OptionValue> Views(const std::vector<OwnedOption>& owned) {
  std::vector<OptionValue> views;
  views.reserve(owned.size());
  for (const OwnedOption& option : owned) {
    OptionValue& view = views.emplace_back(OptionValue{.name = option.name,
                                                       .type = option.type,
                                                       .integer = option.integer,
                                                       .number = option.number,
                                                       .string = option.string,
                                                       .integers = option.integers});
    if (option.layers == nullptr) continue;
    view.layers = option.layers->data();
    view.layer_count = option.layers->size();
  }
  return views;
}

std::vector<std::string> PluginSelection::HookNames() const {
  std::vector<std::string> names;
  for (const PluginChoice& hook : hooks) names.push_back(hook.entry.name);
  return names;
}

std::string PluginSelection::Names() const {
  std::string names;
  for (const PluginChoice* choice : AllOf(*this)) {
    names += (names.empty() ? "" : " ") + choice->entry.name;
  }
  return names;
}

std::string PluginSelection::Versions() const {
  std::string versions;
  for (const PluginChoice* choice : AllOf(*this)) {
    versions += choice->entry.name + " " + choice->entry.version + "; ";
  }
  return versions;
}

}  // namespace engine::plugin
