#include "device_clip_norm.h"

#include <algorithm>
#include <new>
#include <numeric>

namespace engine::clip_norm {
namespace {

constexpr size_t kLeastSlots = 1024;
constexpr int64_t kMoveTimeoutMs = 60000;  // of slots, in the first step

Status NoMemory() noexcept {
  return Status::Error(StatusCode::kResourceExhausted,
                       "clip_norm has no memory for the norms of the gradients");
}

}  // namespace

DeviceClipNorm::~DeviceClipNorm() {
  device_.Free(squares_);
  device_.Free(sum_);
}

Status DeviceClipNorm::Setup(uint32_t parameter_count) noexcept {
  void* memory = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.Allocate(sizeof(float), &memory));
  sum_ = static_cast<float*>(memory);
  return Reserve(std::max<size_t>(kLeastSlots, 2 * size_t{parameter_count}));
}

// Room for `count` slots; keeps what is in them. Only the first step may need more of it.
Status DeviceClipNorm::Reserve(size_t count) noexcept {
  if (count <= capacity_) return {};
  try {
    places_.reserve(count);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  void* memory = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.Allocate(count * sizeof(float), &memory));
  float* const before = std::exchange(squares_, static_cast<float*>(memory));
  const size_t used = std::exchange(capacity_, count);
  if (before == nullptr) return {};
  ENGINE_RETURN_IF_ERROR(device_.Copy(squares_, before, used * sizeof(float), stream_));
  ENGINE_RETURN_IF_ERROR(stream_->Synchronize(kMoveTimeoutMs));
  device_.Free(before);
  return {};
}

Status DeviceClipNorm::BeginStep(uint64_t) noexcept {
  if (!settled_) places_.clear();
  is_added_up_ = false;
  return {};
}

Status DeviceClipNorm::SlotOf(const GradientView& gradient, size_t* slot) noexcept {
  const Place place{gradient.parameter, gradient.offset};
  if (!settled_) {
    if (places_.size() == capacity_) ENGINE_RETURN_IF_ERROR(Reserve(2 * capacity_));
    *slot = places_.size();
    places_.push_back(place);
    return {};
  }
  const auto found = std::lower_bound(places_.begin(), places_.end(), place);
  if (found != places_.end() && *found == place) {
    *slot = static_cast<size_t>(found - places_.begin());
    return {};
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "clip_norm was not shown the span of '%.*s' from element %lld in the first "
                       "step",
                       static_cast<int>(gradient.name.size()), gradient.name.data(),
                       static_cast<long long>(gradient.offset));
}

Status DeviceClipNorm::Observe(const GradientView& gradient) noexcept {
  stream_ = gradient.stream;
  size_t slot = 0;
  ENGINE_RETURN_IF_ERROR(SlotOf(gradient, &slot));
  return math_.SumOfSquares(gradient.data, gradient.count, gradient.scale, squares_ + slot,
                            stream_);
}

// Brings the slots of the first step, which are in the order of its transfers, in the order of
// their places.
Status DeviceClipNorm::Settle() noexcept {
  if (settled_ || places_.empty()) return {};
  std::vector<size_t> order;
  try {
    order.resize(places_.size());
  } catch (const std::bad_alloc&) {
    return NoMemory();
  }
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return places_[a] < places_[b]; });
  void* memory = nullptr;
  ENGINE_RETURN_IF_ERROR(device_.Allocate(capacity_ * sizeof(float), &memory));
  float* const before = std::exchange(squares_, static_cast<float*>(memory));
  Status status;
  for (size_t i = 0; i < order.size() && status.ok(); ++i) {
    status = device_.Copy(squares_ + i, before + order[i], sizeof(float), stream_);
  }
  if (status.ok()) status = stream_->Synchronize(kMoveTimeoutMs);
  device_.Free(before);
  std::sort(places_.begin(), places_.end());
  settled_ = true;
  return status;
}

Status DeviceClipNorm::AddUp() noexcept {
  if (is_added_up_) return {};
  is_added_up_ = true;
  ENGINE_RETURN_IF_ERROR(Settle());
  return math_.Sum(squares_, static_cast<int64_t>(places_.size()), sum_, stream_);
}

// Only the sum of the squares is left of what Observe has seen. An error shows in Apply.
std::span<float> DeviceClipNorm::Observed() noexcept {
  if (stream_ == nullptr || !AddUp().ok()) is_added_up_ = false;
  return {sum_, 1};
}

Status DeviceClipNorm::Apply(const GradientView& gradient) noexcept {
  stream_ = gradient.stream;
  ENGINE_RETURN_IF_ERROR(AddUp());
  return math_.ScaleToNorm(sum_, max_norm_, gradient.scale, gradient.stream);
}

}  // namespace engine::clip_norm
