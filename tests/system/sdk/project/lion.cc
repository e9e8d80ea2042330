// The optimizer Lion (Chen et al., Symbolic discovery of optimization algorithms, 2023), as lion.c and
// lion.rs have it. Each build of it has a name of its own.
#include <array>
#include <new>

#include "engine/plugin.h"

#ifndef PLUGIN_NAME
#define PLUGIN_NAME "lion"
#endif

namespace engine::lion {
namespace {

class Lion final : public OptimizerBase {
 public:
  explicit Lion(const Options& options)
      : beta1_(static_cast<float>(options.Float("beta1"))),
        beta2_(static_cast<float>(options.Float("beta2"))),
        weight_decay_(static_cast<float>(options.Float("weight_decay"))) {}

  OptimizerTraits traits() const noexcept override {
    return {.state_count = 1, .state_names = {"momentum"}};
  }

  Status Update(const UpdateCall& call) noexcept override {
    float* const momentum = call.states[0];
    const float decay = weight_decay_ * call.weight_decay_scale;
    for (int64_t i = 0; i < call.count; ++i) {
      const float gradient = call.gradient[i] * call.gradient_scale;
      const float mixed = beta1_ * momentum[i] + (1 - beta1_) * gradient;
      const float sign = static_cast<float>((mixed > 0) - (mixed < 0));
      call.value[i] -= call.learning_rate * (sign + decay * call.value[i]);
      momentum[i] = beta2_ * momentum[i] + (1 - beta2_) * gradient;
    }
    return {};
  }

 private:
  const float beta1_, beta2_, weight_decay_;
};

StatusValue Create(Host&, const Options& options, Object** out) noexcept {
  *out = new (std::nothrow) Lion(options);
  return *out ? Status() : Status::Error(StatusCode::kResourceExhausted, "no memory");
}

constexpr OptionSpec Fraction(FixedString<32> name, FixedString<64> value, FixedString<160> doc) {
  return {.name = name,
          .type = OptionType::kFloat,
          .default_value = value,
          .min = 0,
          .max = 1,
          .doc = doc};
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = PLUGIN_NAME,
                    .version = "1.0.0",
                    .kind = PluginKind::kOptimizer,
                    .doc = "Lion: steps by the sign of an interpolated momentum",
                    .create = Create},
                   NoOps(),
                   std::array{Fraction("beta1", "0.9", "weight of the momentum in the sign"),
                              Fraction("beta2", "0.99", "decay of the momentum"),
                              Fraction("weight_decay", "0", "decoupled, times the learning rate")});

}  // namespace engine::lion
