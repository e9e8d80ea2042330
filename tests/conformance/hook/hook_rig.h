// Hooks of this build.
#pragma once

#include <memory>
#include <string>

#include "tests/conformance/plugin_under_test.h"
#include "tools/conform/hook/hook_rig.h"
#include "tools/conform/hook/wire_rig.h"

namespace engine::test {

// A value for every option that has no default.
inline OptionValues::Overrides RequiredOptions(const PluginUnderTest& plugin) {
  OptionValues::Overrides values;
  for (const OptionSpec& spec : plugin.option_specs()) {
    if (spec.type == OptionType::kString || spec.default_value.view() != "") continue;
    values[std::string(spec.name.view())] = spec.type == OptionType::kBool ? "true" : "1";
  }
  return values;
}

inline std::unique_ptr<GradientHook> MakeHook(const std::string& path,
                                              OptionValues::Overrides options = {}) {
  options.merge(RequiredOptions(Must(PluginUnderTest::Load(path))));
  return CreateFrom<GradientHook>(path, options);
}

}  // namespace engine::test
