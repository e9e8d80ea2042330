#include "device_clip_norm.h"

#include <algorithm>
#include <new>
#include <tuple>

namespace engine::clip_norm {
namespace {

Status NoMemory() noexcept {
  return Status::Error(StatusCode::kResourceExhausted,
                       "clip_norm has no memory for the list of gradients");
}

}  // namespace

Status DeviceClipNorm::Setup(uint32_t parameter_count) noexcept {
  try {
    seen_.reserve(parameter_count);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  void* memory = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.Allocate(sizeof(float), &memory));
  sum_ = static_cast<float*>(memory);
  return {};
}

Status DeviceClipNorm::BeginStep(uint64_t) noexcept {
  seen_.clear();
  is_added_up_ = is_scaled_ = false;
  return {};
}

// Every step shows the same spans, so that only the first one needs memory for them.
Status DeviceClipNorm::Observe(const GradientView& gradient) noexcept {
  stream_ = gradient.stream;
  try {
    seen_.push_back({gradient.parameter,
                     gradient.offset,
                     {.arrays = {gradient.data, gradient.scale}, .count = gradient.count}});
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  return {};
}

// By place, so that the order of Observe does not matter: transfers end in another order on each
// rank, and their factors must not differ.
Status DeviceClipNorm::AddUp() noexcept {
  if (is_added_up_) return {};
  std::sort(seen_.begin(), seen_.end(), [](const Seen& a, const Seen& b) {
    return std::tie(a.parameter, a.offset) < std::tie(b.parameter, b.offset);
  });
  spans_.clear();
  try {
    for (const Seen& seen : seen_) spans_.push_back(seen.span);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  is_added_up_ = true;
  return square_.Run({.spans = spans_, .shared = sum_, .stream = stream_});
}

// An error shows again in Apply.
std::span<float> DeviceClipNorm::Observed() noexcept {
  if (!AddUp().ok()) is_added_up_ = false;
  return {sum_, 1};
}

Status DeviceClipNorm::Apply(const GradientView& gradient) noexcept {
  stream_ = gradient.stream;
  ENGINE_RETURN_IF_ERROR(AddUp());
  if (is_scaled_) return {};
  is_scaled_ = true;
  return scale_.Run(
      {.spans = spans_, .numbers = {&max_norm_, 1}, .shared = sum_, .stream = stream_});
}

}  // namespace engine::clip_norm
