#include "bench/profile/profile.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace engine::bench {

// Times and sizes are scaled as profile_ops scales them.
std::optional<ProfileFacts> FactsOf(const config::Config& config) {
  const plugin::PluginSelection& plugins = config.plugins();
  const auto ops = std::find_if(
      plugins.ops.begin(), plugins.ops.end(),
      [](const plugin::PluginChoice& choice) { return choice.entry.name == "profile_ops"; });
  const auto net = std::find_if(plugins.model.options.begin(), plugins.model.options.end(),
                                [](const auto& option) { return option.layers != nullptr; });
  if (ops == plugins.ops.end() || net == plugins.model.options.end()) return std::nullopt;
  const std::vector<OptionValue> values = plugin::Views(ops->options);
  const Options scales(values);
  ProfileFacts facts;
  for (const LayerSpec& layer : *net->layers) {
    if (layer.op != "profile_layer") return std::nullopt;
    const Options attributes(layer.attributes);
    const double count =
        static_cast<double>(attributes.Int("parameters")) * scales.Float("size_scale");
    facts.forward_seconds += 1e-6 * attributes.Float("forward_us") * scales.Float("time_scale");
    facts.backward_seconds += 1e-6 * attributes.Float("backward_us") * scales.Float("time_scale");
    facts.gradient_bytes +=
        std::max<int64_t>(std::llround(count), 1) * static_cast<int64_t>(sizeof(float));
  }
  return facts;
}

}  // namespace engine::bench
