// adamw: Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019), with the bias correction of torch.optim.AdamW. At step t:
//
//   value -= learning_rate * weight_decay * value
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g * g
//   value -= learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include "kit/accelerator.h"
#include "kit/create.h"
#include "kit/options.h"
#include "kit/rounded_update.h"
#include "kit/target_clones.h"

namespace engine::adamw {
namespace {

// The constants of one step. What depends on the step alone is folded here, in double precision.
struct Coefficients {
  float gradient_scale = 1;
  float kept = 1;  // 1 - learning_rate * weight_decay
  float beta1 = 0, one_minus_beta1 = 1;
  float beta2 = 0, one_minus_beta2 = 1;
  float step_size = 0;          // learning_rate / (1 - beta1^t)
  float inverse_root_bias = 1;  // 1 / sqrt(1 - beta2^t)
  float epsilon = 0;
};

ENGINE_TARGET_CLONES void Descend(const Coefficients& c, int64_t count,
                                  const float* __restrict gradient, float* __restrict m,
                                  float* __restrict v, float* __restrict value) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * c.gradient_scale;
    m[i] = c.beta1 * m[i] + c.one_minus_beta1 * g;
    v[i] = c.beta2 * v[i] + c.one_minus_beta2 * (g * g);
    const float denominator = std::sqrt(v[i]) * c.inverse_root_bias + c.epsilon;
    value[i] = value[i] * c.kept - c.step_size * (m[i] / denominator);
  }
}

class AdamW final : public OptimizerBase, public SpanUpdatesBase {
 public:
  // `kernel` is null where parameters are host memory.
  AdamW(const Options& options, FlatKernel* kernel) noexcept
      : kernel_(kernel),
        beta1_(options.Float("beta1")),
        beta2_(options.Float("beta2")),
        epsilon_(options.Float("epsilon")),
        weight_decay_(options.Float("weight_decay")) {}

  OptimizerTraits traits() const noexcept override {
    OptimizerTraits traits;
    traits.gate = UpdateGate::kSpan;
    traits.state_count = 2;
    traits.state_names[0] = "first_moment";
    traits.state_names[1] = "second_moment";
    return traits;
  }

  void* Query(std::string_view id) noexcept override {
    return id == SpanUpdates::kId && kernel_ ? static_cast<SpanUpdates*>(this) : nullptr;
  }

  Status Update(Array<const UpdateCall> calls) noexcept override {
    const float numbers[] = {static_cast<float>(beta1_), static_cast<float>(beta2_),
                             static_cast<float>(epsilon_)};
    return kit::UpdateInParts(*kernel_, numbers, calls, static_cast<float>(weight_decay_));
  }

  Status Update(const UpdateCall& call) noexcept override {
    if (kernel_) return Update(std::span(&call, 1));
    if (call.step == 0) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "adamw counts steps from 1, but was asked for step 0");
    }
    const double t = static_cast<double>(call.step);
    const double learning_rate = call.learning_rate;
    const Coefficients c{
        .gradient_scale = call.gradient_scale,
        .kept = static_cast<float>(1 - learning_rate * weight_decay_ * call.weight_decay_scale),
        .beta1 = static_cast<float>(beta1_),
        .one_minus_beta1 = static_cast<float>(1 - beta1_),
        .beta2 = static_cast<float>(beta2_),
        .one_minus_beta2 = static_cast<float>(1 - beta2_),
        .step_size = static_cast<float>(learning_rate / (1 - std::pow(beta1_, t))),
        .inverse_root_bias = static_cast<float>(1 / std::sqrt(1 - std::pow(beta2_, t))),
        .epsilon = static_cast<float>(epsilon_)};
    kit::UpdateWithCopy(call, [&](int64_t begin, int64_t count) {
      Descend(c, count, call.gradient + begin, call.states[0] + begin, call.states[1] + begin,
              call.value + begin);
    });
    return {};
  }

 private:
  FlatKernel* const kernel_;
  const double beta1_;
  const double beta2_;
  const double epsilon_;
  const double weight_decay_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  FlatKernel* kernel = nullptr;
  ENGINE_RETURN_IF_ERROR(kit::FindKernel(host, "adamw", "adamw", &kernel));
  return kit::Make<AdamW>(out, options, kernel);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kOptimizer, "adamw", "1.0.0", "Adam with decoupled weight decay", Create,
    std::array{
        kit::FloatOption("beta1", "0.9", 0, 0.999999,
                         "share of the running mean of gradients kept in each step"),
        kit::FloatOption("beta2", "0.999", 0, 0.999999,
                         "share of the running mean of squared gradients kept in each step"),
        kit::FloatOption("epsilon", "1e-8", 1e-30, 1, "added to the root of the second moment"),
        kit::FloatOption("weight_decay", "0.01", 0, 1,
                         "share of the parameter subtracted in each step, times the "
                         "learning rate")});

}  // namespace engine::adamw
