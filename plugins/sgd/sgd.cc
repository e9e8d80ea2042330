// sgd: stochastic gradient descent with momentum, Nesterov momentum and weight decay, after the
// formulas of torch.optim.SGD (dampening 0):
//
//   g' = g + weight_decay * value
//   b  = momentum * b + g'                            b is 0 before the first update
//   value -= learning_rate * (nesterov ? g' + momentum * b : b)
//
// Nesterov's form: Sutskever et al., "On the importance of initialization and momentum in deep
// learning", 2013.
#include <cstdint>
#include <span>
#include <string_view>

#include "kit/accelerator.h"
#include "kit/create.h"
#include "kit/options.h"
#include "kit/rounded_update.h"
#include "kit/target_clones.h"

namespace engine::sgd {
namespace {

struct Coefficients {
  float gradient_scale = 1;
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
};

ENGINE_TARGET_CLONES void Descend(const Coefficients& c, int64_t count,
                                  const float* __restrict gradient,
                                  float* __restrict value) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    value[i] -= c.learning_rate * (gradient[i] * c.gradient_scale + c.weight_decay * value[i]);
  }
}

ENGINE_TARGET_CLONES void DescendWithMomentum(const Coefficients& c, bool nesterov, int64_t count,
                                              const float* __restrict gradient,
                                              float* __restrict buffer,
                                              float* __restrict value) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * c.gradient_scale + c.weight_decay * value[i];
    const float b = c.momentum * buffer[i] + g;
    buffer[i] = b;
    value[i] -= c.learning_rate * (nesterov ? g + c.momentum * b : b);
  }
}

class Sgd final : public OptimizerBase, public SpanUpdatesBase {
 public:
  // `kernel` is null where parameters are host memory.
  Sgd(const Options& options, FlatKernel* kernel) noexcept
      : kernel_(kernel),
        momentum_(static_cast<float>(options.Float("momentum"))),
        weight_decay_(static_cast<float>(options.Float("weight_decay"))),
        nesterov_(options.Bool("nesterov")) {}

  OptimizerTraits traits() const noexcept override {
    OptimizerTraits traits;
    traits.gate = UpdateGate::kSpan;
    if (momentum_ != 0) {
      traits.state_count = 1;
      traits.state_names[0] = "momentum";
    }
    return traits;
  }

  void* Query(std::string_view id) noexcept override {
    return id == SpanUpdates::kId && kernel_ ? static_cast<SpanUpdates*>(this) : nullptr;
  }

  Status Update(Array<const UpdateCall> calls) noexcept override {
    const float numbers[] = {momentum_, nesterov_ ? 1.0f : 0.0f};
    return kit::UpdateInParts(*kernel_, numbers, calls, weight_decay_);
  }

  Status Update(const UpdateCall& call) noexcept override {
    if (kernel_) return Update(std::span(&call, 1));
    const Coefficients c{.gradient_scale = call.gradient_scale,
                         .learning_rate = call.learning_rate,
                         .momentum = momentum_,
                         .weight_decay = weight_decay_ * call.weight_decay_scale};
    kit::UpdateWithCopy(call, [&](int64_t begin, int64_t count) {
      const float* const gradient = call.gradient + begin;
      float* const value = call.value + begin;
      if (momentum_ == 0) {
        Descend(c, count, gradient, value);
      } else {
        DescendWithMomentum(c, nesterov_, count, gradient, call.states[0] + begin, value);
      }
    });
    return {};
  }

 private:
  FlatKernel* const kernel_;
  const float momentum_;
  const float weight_decay_;
  const bool nesterov_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  FlatKernel* kernel = nullptr;
  ENGINE_RETURN_IF_ERROR(kit::FindKernel(host, "sgd", "sgd", &kernel));
  if (options.Bool("nesterov") && options.Float("momentum") == 0) {
    return Status::Error(StatusCode::kConfig,
                         "nesterov needs a momentum: set momentum, e.g. to 0.9");
  }
  return kit::Make<Sgd>(out, options, kernel);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kOptimizer, "sgd", "1.0.0",
    "stochastic gradient descent with momentum and weight decay", Create,
    std::array{
        kit::FloatOption("momentum", "0", 0, 1, "share of the last step's direction that is kept"),
        kit::BoolOption("nesterov", "false",
                        "look ahead along the momentum before the gradient is applied"),
        kit::FloatOption("weight_decay", "0", 0, 1,
                         "added to the gradient as this share of the parameter")});

}  // namespace engine::sgd
