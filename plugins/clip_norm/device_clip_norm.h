// clip_norm where gradients lie in the memory of an accelerator: the norm and the factor never
// leave it, so nothing waits for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ext/accelerator.h"
#include "engine/gradient_hook.h"

namespace engine::clip_norm {

// Observe only notes the spans of a step; the first Apply has all of them squared, added up and
// scaled at once.
class DeviceClipNorm final : public GradientHook {
 public:
  // `device` has the kernels, and outlives the hook. Both work on spans {data, scale}: `square` writes
  // the sum of (data[i] * *scale)^2 over all of them to FlatCall::shared, in the order given; `scale`
  // multiplies every scale, of which no two are the same one, by min(1, max_norm / sqrt(*shared)).
  DeviceClipNorm(double max_norm, Device& device, FlatKernel& square, FlatKernel& scale) noexcept
      : max_norm_(static_cast<float>(max_norm)), device_(device), square_(square), scale_(scale) {}
  ~DeviceClipNorm() override { device_.Free(sum_); }

  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kReduced, .scope = HookScope::kGlobal};
  }
  Status Setup(uint32_t parameter_count) noexcept override;
  Status BeginStep(uint64_t step) noexcept override;
  Status Observe(const GradientView& gradient) noexcept override;
  Status Apply(const GradientView& gradient) noexcept override;
  std::span<float> Observed() noexcept override;

 private:
  struct Seen {
    uint32_t parameter = 0;
    int64_t offset = 0;
    FlatSpan span;
  };

  Status AddUp() noexcept;

  const float max_norm_;
  Device& device_;
  FlatKernel& square_;
  FlatKernel& scale_;
  Stream* stream_ = nullptr;     // of the gradients
  std::vector<Seen> seen_;       // in this step
  std::vector<FlatSpan> spans_;  // of it, by place
  bool is_added_up_ = false;     // in this step
  bool is_scaled_ = false;       // in this step
  float* sum_ = nullptr;         // device: of the squares
};

}  // namespace engine::clip_norm
