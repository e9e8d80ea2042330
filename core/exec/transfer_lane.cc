#include "core/exec/transfer_lane.h"

namespace engine {

TransferLane::TransferLane(Communicator& communicator, size_t capacity)
    : communicator_(communicator), slots_(capacity), queue_(capacity) {
  for (size_t i = 0; i < capacity; ++i)
    slots_[i] = {.lane = this, .task = static_cast<uint32_t>(i)};
}

TransferLane::~TransferLane() {
  // An aborted communicator ends everything within a second. Memory that it still writes to cannot
  // be freed.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Completion ignored;
  while (in_flight_ > 0) {
    ENGINE_CHECK(WaitUntil(deadline), "the communicator did not end %zu transfers after Abort",
                 in_flight_);
    while (Take(&ignored)) continue;
  }
}

Status TransferLane::Start(uint32_t task, const Transfer& transfer) {
  Slot& slot = slots_[task];
  ENGINE_CHECK(slot.work == nullptr, "task %u is under way", task);
  ENGINE_RETURN_IF_ERROR(communicator_.Submit(transfer, &slot.work));
  ++in_flight_;
  slot.work->OnDone(&TransferLane::OnDone, &slot);
  return {};
}

void TransferLane::OnDone(void* context) {
  auto* slot = static_cast<Slot*>(context);
  TransferLane& lane = *slot->lane;
  // Notified under the lock: the lane may be destroyed as soon as the last end has been taken.
  std::lock_guard lock(lane.mutex_);
  lane.queue_[(lane.head_ + lane.size_) % lane.queue_.size()] = slot->task;
  ++lane.size_;
  lane.done_.notify_one();
}

bool TransferLane::Take(Completion* completion) {
  {
    std::lock_guard lock(mutex_);
    if (size_ == 0) return false;
    completion->task = queue_[head_];
    head_ = (head_ + 1) % queue_.size();
    --size_;
  }
  Slot& slot = slots_[completion->task];
  completion->status = slot.work->WaitHost(0);
  slot.work->Release();
  slot.work = nullptr;
  --in_flight_;
  return true;
}

bool TransferLane::WaitUntil(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return done_.wait_until(lock, deadline, [this] { return size_ > 0; });
}

}  // namespace engine
