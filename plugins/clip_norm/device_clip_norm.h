// clip_norm where gradients lie in the memory of an accelerator: the norm and the factor never
// leave it, so nothing waits for them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/accelerator.h"
#include "engine/gradient_hook.h"

namespace engine::clip_norm {

class DeviceClipNorm final : public GradientHook {
 public:
  // `device` has an arithmetic, `math`, and outlives the hook.
  DeviceClipNorm(double max_norm, Device& device, FlatMath& math) noexcept
      : max_norm_(static_cast<float>(max_norm)), device_(device), math_(math) {}
  ~DeviceClipNorm() override;

  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kReduced, .scope = HookScope::kGlobal};
  }
  Status Setup(uint32_t parameter_count) noexcept override;
  Status BeginStep(uint64_t step) noexcept override;
  Status Observe(const GradientView& gradient) noexcept override;
  Status Apply(const GradientView& gradient) noexcept override;
  std::span<float> Observed() noexcept override;

 private:
  // Parameter and offset: by these, spans have one order on all ranks, whatever the order of their
  // transfers.
  using Place = std::pair<uint32_t, int64_t>;

  Status Reserve(size_t count) noexcept;
  Status SlotOf(const GradientView& gradient, size_t* slot) noexcept;
  Status Settle() noexcept;
  Status AddUp() noexcept;

  const float max_norm_;
  Device& device_;
  FlatMath& math_;
  Stream* stream_ = nullptr;   // of the gradients
  std::vector<Place> places_;  // of the slots; in order once settled_
  bool settled_ = false;       // every step shows the spans of the first one
  bool is_added_up_ = false;   // in this step
  size_t capacity_ = 0;        // slots
  float* squares_ = nullptr;   // device: of the norm of each span
  float* sum_ = nullptr;       // device: of squares_
};

}  // namespace engine::clip_norm
