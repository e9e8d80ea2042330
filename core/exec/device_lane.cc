#include "core/exec/device_lane.h"

namespace engine {
namespace {

// Between two looks at stop_.
constexpr int64_t kLookMs = 100;

}  // namespace

Result<std::unique_ptr<DeviceLane>> DeviceLane::Create(Device& device, size_t capacity,
                                                       int64_t timeout_ms, OnReached on_reached) {
  std::unique_ptr<DeviceLane> lane(new DeviceLane(timeout_ms, std::move(on_reached)));
  lane->slots_.resize(capacity);
  for (Slot& slot : lane->slots_) {
    Event* event = nullptr;
    ENGINE_RETURN_IF_ERROR(device.CreateEvent(&event));
    slot.event.reset(event);
  }
  lane->thread_ = std::thread([self = lane.get()] { self->Follow(); });
  return lane;
}

DeviceLane::DeviceLane(int64_t timeout_ms, OnReached on_reached)
    : timeout_ms_(timeout_ms), on_reached_(std::move(on_reached)) {}

DeviceLane::~DeviceLane() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Status DeviceLane::Mark(uint32_t task, Stream* stream) {
  const std::lock_guard lock(mutex_);
  ENGINE_CHECK(size_ < slots_.size(), "more than %zu marks under way", slots_.size());
  Slot& slot = slots_[(head_ + size_) % slots_.size()];
  slot.task = task;
  ENGINE_RETURN_IF_ERROR(stream->Record(slot.event.get()));
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  ++size_;
  changed_.notify_one();
  return {};
}

void DeviceLane::Follow() {
  std::unique_lock lock(mutex_);
  int64_t waited_ms = 0;
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || size_ > 0; });
    if (stop_) return;
    const Slot& slot = slots_[head_];
    lock.unlock();
    Status status = slot.event->WaitHost(kLookMs);
    if (status.code() == StatusCode::kTimeout && (waited_ms += kLookMs) < timeout_ms_) {
      lock.lock();
      continue;
    }
    waited_ms = 0;
    if (status.code() == StatusCode::kTimeout) {
      status = Status::Error(StatusCode::kTimeout, "the device did not come here within %lld ms",
                             static_cast<long long>(timeout_ms_));
    }
    on_reached_(slot.task, std::move(status));
    in_flight_.fetch_sub(1, std::memory_order_relaxed);
    lock.lock();
    head_ = (head_ + 1) % slots_.size();
    --size_;
  }
}

}  // namespace engine
