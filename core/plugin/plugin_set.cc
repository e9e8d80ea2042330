#include "core/plugin/plugin_set.h"

namespace engine::plugin {
// The views borrow names, texts and lists from `owned`, which must neither change nor move while
// they are in use; an object of a plugin copies what it keeps.
std::vector<OptionValue> Views(const std::vector<OwnedOption>& owned) {
  std::vector<OptionValue> views;
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

std::vector<OwnedOption> Own(Array<const OptionValue> values) {
  std::vector<OwnedOption> owned;
  for (const OptionValue& value : values) {
    owned.push_back({.name = std::string(value.name),
                     .type = value.type,
                     .integer = value.integer,
                     .number = value.number,
                     .string = std::string(value.string),
                     .integers = {value.integers.begin(), value.integers.end()}});
  }
  return owned;
}

std::vector<std::string> PluginSelection::HookNames() const {
  std::vector<std::string> names;
  for (const PluginChoice& hook : hooks) names.push_back(hook.entry.name);
  return names;
}

}  // namespace engine::plugin
