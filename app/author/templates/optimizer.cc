// my_plugin: every parameter moves by the learning rate, up or down: by the sign of a mean of its
// gradients (Lion: Chen et al., "Symbolic discovery of optimization algorithms", 2023).
#include <array>
#include <cmath>
#include <cstdint>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine {
namespace {

class Lion final : public OptimizerBase {
 public:
  // Options that the descriptor below publishes are always there, and within their ranges.
  explicit Lion(const Options& options) noexcept
      : beta1_(static_cast<float>(options.Float("beta1"))),
        beta2_(static_cast<float>(options.Float("beta2"))) {}

  // What a parameter needs to be updated, and which tensors of its shape are kept for it, also in
  // checkpoints.
  OptimizerTraits traits() const noexcept override {
    OptimizerTraits traits;
    traits.gate = UpdateGate::kSpan;
    traits.state_count = 1;
    traits.state_names[0] = "mean";
    return traits;
  }

  // Spans of any size, by several threads at a time: nothing of this object may change.
  Status Update(const UpdateCall& call) noexcept override {
    float* const mean = call.states[0];
    for (int64_t i = 0; i < call.count; ++i) {
      const float gradient = call.gradient[i] * call.gradient_scale;
      const float direction = beta1_ * mean[i] + (1 - beta1_) * gradient;
      if (direction != 0) call.value[i] -= std::copysign(call.learning_rate, direction);
      mean[i] = beta2_ * mean[i] + (1 - beta2_) * gradient;
    }
    return {};
  }

 private:
  const float beta1_, beta2_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "my_plugin",
     .version = "0.1.0",
     .kind = PluginKind::kOptimizer,
     .doc = "steps by the sign of a mean of gradients",
     .create = kit::CreateOnCpu<Lion>},
    NoOps(),
    std::array{kit::FloatOption("beta1", "0.9", 0, 1, "share of the mean in a step"),
               kit::FloatOption("beta2", "0.99", 0, 1, "share of the mean that is kept")});

}  // namespace engine
