// What both ways to clip have in common, and clip_norm where gradients lie in the memory of an
// accelerator: there the norm and the factor never leave it, so nothing waits for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <span>
#include <tuple>
#include <vector>

#include "engine/ext/accelerator.h"
#include "engine/gradient_hook.h"

namespace engine::clip_norm {

// A hook that looks at all gradients of a step before it changes one.
class GlobalHook : public GradientHookBase {
 public:
  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kReduced, .scope = HookScope::kGlobal};
  }

  Status Setup(uint32_t parameter_count) noexcept override {
    return CatchNoMemory([&] { seen_.reserve(parameter_count); });
  }

 protected:
  struct Seen {
    uint32_t parameter = 0;
    int64_t offset = 0;
    FlatSpan span;
    double square = 0;  // of the L2 norm of the span, where it is known
  };

  template <typename Body>
  static Status CatchNoMemory(Body body) noexcept {
    try {
      body();
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted,
                           "clip_norm has no memory for the list of gradients");
    }
    return {};
  }

  // Every step shows the same spans, so that only the first one needs memory for them.
  Status See(const GradientView& gradient, double square = 0) noexcept {
    return CatchNoMemory([&] {
      seen_.push_back({gradient.parameter,
                       gradient.offset,
                       {.arrays = {gradient.data, gradient.scale}, .count = gradient.count},
                       square});
    });
  }

  // By place, so that the order of Observe does not matter: transfers end in another order on each
  // rank, and their factors must not differ.
  const std::vector<Seen>& SeenByPlace() noexcept {
    std::sort(seen_.begin(), seen_.end(), [](const Seen& a, const Seen& b) {
      return std::tie(a.parameter, a.offset) < std::tie(b.parameter, b.offset);
    });
    return seen_;
  }

  std::vector<Seen> seen_;  // in this step
};

// Observe only notes the spans of a step; the first Apply has all of them squared, added up and
// scaled at once.
class DeviceClipNorm final : public GlobalHook {
 public:
  // `device` has the kernels, and outlives the hook. Both work on spans {data, scale}: `square` writes
  // the sum of (data[i] * *scale)^2 over all of them to FlatCall::shared, in the order given; `scale`
  // multiplies every scale, of which no two are the same one, by min(1, max_norm / sqrt(*shared)).
  DeviceClipNorm(double max_norm, Device& device, FlatKernel& square, FlatKernel& scale) noexcept
      : max_norm_(static_cast<float>(max_norm)), device_(device), square_(square), scale_(scale) {}
  ~DeviceClipNorm() override { device_.Free(sum_); }

  Status Setup(uint32_t parameter_count) noexcept override {
    void* memory = nullptr;
    ENGINE_RETURN_IF_ERROR(device_.Allocate(sizeof(float), &memory));
    sum_ = static_cast<float*>(memory);
    return GlobalHook::Setup(parameter_count);
  }

  Status BeginStep(uint64_t) noexcept override {
    seen_.clear();
    is_added_up_ = is_scaled_ = false;
    return {};
  }

  Status Observe(const GradientView& gradient) noexcept override {
    stream_ = gradient.stream;
    return See(gradient);
  }

  Status Apply(const GradientView& gradient) noexcept override {
    stream_ = gradient.stream;
    ENGINE_RETURN_IF_ERROR(AddUp());
    if (is_scaled_) return {};
    is_scaled_ = true;
    return scale_.Run(
        {.spans = spans_, .numbers = {&max_norm_, 1}, .shared = sum_, .stream = stream_});
  }

  // An error shows again in Apply.
  std::span<float> Observed() noexcept override {
    if (!AddUp().ok()) is_added_up_ = false;
    return {sum_, 1};
  }

 private:
  Status AddUp() noexcept {
    if (is_added_up_) return {};
    spans_.clear();
    ENGINE_RETURN_IF_ERROR(CatchNoMemory([&] {
      for (const Seen& seen : SeenByPlace()) spans_.push_back(seen.span);
    }));
    is_added_up_ = true;
    return square_.Run({.spans = spans_, .shared = sum_, .stream = stream_});
  }

  const float max_norm_;
  Device& device_;
  FlatKernel& square_;
  FlatKernel& scale_;
  Stream* stream_ = nullptr;     // of the gradients
  std::vector<FlatSpan> spans_;  // of this step, by place
  bool is_added_up_ = false;     // in this step
  bool is_scaled_ = false;       // in this step
  float* sum_ = nullptr;         // device: of the squares
};

}  // namespace engine::clip_norm
