// A hook and the gradients of one step.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/plugin_under_test.h"

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
  static LoneHost host;
  auto plugin = PluginUnderTest::Load(path);
  if (!plugin.ok()) {
    ADD_FAILURE() << plugin.status().message();
    return nullptr;
  }
  options.merge(RequiredOptions(*plugin));
  auto hook = plugin->Create<GradientHook>(host, options);
  if (hook.ok()) return std::move(*hook);
  ADD_FAILURE() << hook.status().message();
  return nullptr;
}

struct Gradient {
  std::string name;
  std::vector<float> data;
  float scale = 1;

  double Value(size_t i) const { return double{data[i]} * scale; }
};

inline GradientView View(std::vector<Gradient>& gradients, size_t parameter) {
  Gradient& gradient = gradients[parameter];
  return {.parameter = static_cast<uint32_t>(parameter),
          .name = gradient.name,
          .data = gradient.data.data(),
          .count = static_cast<int64_t>(gradient.data.size()),
          .scale = &gradient.scale};
}

// Gradients of odd sizes, one of them empty, each with a scale of its own.
inline std::vector<Gradient> RandomGradients(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Gradient> gradients;
  for (size_t count : {1u, 37u, 0u, 1001u, 64u}) {
    Gradient& gradient = gradients.emplace_back();
    gradient.name = "layer" + std::to_string(gradients.size()) + ".weight";
    gradient.data.resize(count);
    for (float& x : gradient.data) x = normal(random);
    gradient.scale = 0.25f * static_cast<float>(gradients.size());
  }
  return gradients;
}

// One step of one hook, with Observe and Apply in the order given.
inline Status RunHook(GradientHook& hook, std::vector<Gradient>& gradients, uint64_t step,
                      const std::vector<size_t>& order) {
  ENGINE_RETURN_IF_ERROR(hook.BeginStep(step));
  if (hook.traits().scope == HookScope::kGlobal) {
    for (size_t p : order) ENGINE_RETURN_IF_ERROR(hook.Observe(View(gradients, p)));
  }
  for (size_t p : order) ENGINE_RETURN_IF_ERROR(hook.Apply(View(gradients, p)));
  return {};
}

inline std::vector<size_t> InOrder(const std::vector<Gradient>& gradients) {
  std::vector<size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace engine::test
