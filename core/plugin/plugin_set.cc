#include "core/plugin/plugin_set.h"

#include <algorithm>

namespace engine::plugin {
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
    if (option.layers != nullptr) view.layers = *option.layers;
  }
  return views;
}

std::vector<const PluginChoice*> PluginSelection::All() const {
  std::vector<const PluginChoice*> all{&communicator, &scheduler, &optimizer};
  for (const PluginChoice& choice : ops) all.push_back(&choice);
  for (const PluginChoice& choice : hooks) all.push_back(&choice);
  all.push_back(&dataset);
  all.push_back(&model);
  return all;
}

std::vector<std::string> PluginSelection::HookNames() const {
  std::vector<std::string> names;
  for (const PluginChoice& hook : hooks) names.push_back(hook.entry.name);
  return names;
}

std::string PluginSelection::PluginOfOp(const std::string& op) const {
  const auto offers = [&](const PluginChoice& choice) {
    return std::ranges::find(choice.entry.ops, op) != choice.entry.ops.end();
  };
  const auto found = std::ranges::find_if(ops, offers);
  return found == ops.end() ? "a plugin" : found->entry.Title();
}

std::string PluginSelection::Names() const {
  std::string names;
  for (const PluginChoice* choice : All()) {
    names += (names.empty() ? "" : " ") + choice->entry.name;
  }
  return names;
}

}  // namespace engine::plugin
