// clip_value: limits every element of the reduced gradient to [-threshold, threshold]
// (torch.nn.utils.clip_grad_value_).
#include <cstdint>
#include <span>

#include "kit/accelerator.h"
#include "kit/create.h"
#include "kit/options.h"
#include "kit/target_clones.h"

namespace engine::clip_value {
namespace {

// NaN stays NaN: both comparisons are false.
ENGINE_TARGET_CLONES void ScaleAndClamp(float scale, float threshold, int64_t count,
                                        float* data) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const float value = data[i] * scale;
    const float low = value < -threshold ? -threshold : value;
    data[i] = low > threshold ? threshold : low;
  }
}

class ClipValue final : public GradientHookBase {
 public:
  // `kernel` is null where gradients are host memory.
  ClipValue(const Options& options, FlatKernel* kernel) noexcept
      : kernel_(kernel), threshold_(static_cast<float>(options.Float("threshold"))) {}

  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kReduced, .scope = HookScope::kSpan};
  }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t) noexcept override { return {}; }
  Status Observe(const GradientView&) noexcept override { return {}; }
  std::span<float> Observed() noexcept override { return {}; }

  // The scale is folded into the data. The pass over memory is needed anyway, no rounding can lift
  // a clipped value above the threshold again, and the others keep the bits they would have had.
  Status Apply(const GradientView& gradient) noexcept override {
    if (kernel_) {
      const FlatSpan span{.arrays = {gradient.data, gradient.scale}, .count = gradient.count};
      return kernel_->Run(
          {.spans = {&span, 1}, .numbers = {&threshold_, 1}, .stream = gradient.stream});
    }
    ScaleAndClamp(*gradient.scale, threshold_, gradient.count, gradient.data);
    *gradient.scale = 1;
    return {};
  }

 private:
  FlatKernel* const kernel_;
  const float threshold_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  FlatKernel* kernel = nullptr;
  ENGINE_RETURN_IF_ERROR(kit::FindKernel(host, "clip_value", "clip_value", &kernel));
  return kit::Make<ClipValue>(out, options, kernel);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    kit::DescribePlugin(PluginKind::kHook, "clip_value", "1.1.0",
                        "limits every element of a gradient to [-threshold, threshold]", Create,
                        std::array{kit::FloatOption("threshold", "", 1e-30, 1e30,
                                                    "largest absolute value of an element")});

}  // namespace engine::clip_value
