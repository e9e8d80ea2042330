// my_plugin: multiplies every gradient by a factor, once it has come from all ranks.
#include <array>
#include <cstdint>
#include <span>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine {
namespace {

class ScaleGradients final : public GradientHookBase {
 public:
  // Options that the descriptor below publishes are always there, and within their ranges.
  explicit ScaleGradients(const Options& options) noexcept
      : factor_(static_cast<float>(options.Float("factor"))) {}

  // kReduced: the mean over all ranks, after its transfer. kSpan: Apply may get any part of it.
  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kReduced, .scope = HookScope::kSpan};
  }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t) noexcept override { return {}; }

  // An element is data[i] * *scale: to change the scale costs no pass over memory. All ranks must
  // make the same of a gradient.
  Status Apply(const GradientView& gradient) noexcept override {
    *gradient.scale *= factor_;
    return {};
  }

  // For hooks that must see all gradients before they change one: HookScope::kGlobal.
  Status Observe(const GradientView&) noexcept override { return {}; }
  std::span<float> Observed() noexcept override { return {}; }

 private:
  const float factor_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "my_plugin",
                    .version = "0.1.0",
                    .kind = PluginKind::kHook,
                    .doc = "multiplies every gradient by a factor",
                    .create = kit::CreateOnCpu<ScaleGradients>},
                   NoOps(), std::array{kit::FloatOption("factor", "0.5", 0, 10, "of gradients")});

}  // namespace engine
