#include "core/exec/transfer_lane.h"

#include "core/exec/clock.h"

namespace engine {

TransferLane::TransferLane(Communicator& communicator, size_t capacity,
                           std::function<void()> on_done)
    : communicator_(communicator),
      on_done_(std::move(on_done)),
      slots_(capacity),
      queue_(capacity) {
  for (size_t i = 0; i < capacity; ++i) {
    slots_[i].lane = this;
    slots_[i].task = static_cast<uint32_t>(i);
  }
}

void TransferLane::Drain() {
  // An aborted communicator ends everything within a second. Memory that it still writes to cannot
  // be freed.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Completion ignored;
  for (;;) {
    while (Take(&ignored)) continue;
    std::unique_lock lock(mutex_);
    if (in_flight() == 0 && calling_ == 0) return;
    const bool in_time = done_.wait_until(
        lock, deadline, [this] { return size_ > 0 || (in_flight() == 0 && calling_ == 0); });
    ENGINE_CHECK(in_time, "the communicator did not end %zu transfers after Abort", in_flight());
  }
}

Status TransferLane::Start(uint32_t task, const Transfer& transfer) {
  Slot& slot = slots_[task];
  ENGINE_CHECK(slot.work == nullptr, "task %u is under way", task);
  ENGINE_RETURN_IF_ERROR(communicator_.Submit(transfer, &slot.work));
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  slot.work->OnDone(&TransferLane::OnDone, &slot);
  return {};
}

void TransferLane::OnDone(void* context) {
  auto* slot = static_cast<Slot*>(context);
  TransferLane& lane = *slot->lane;
  slot->end_ns = NowNs();
  {
    const std::lock_guard lock(lane.mutex_);
    lane.queue_[(lane.head_ + lane.size_) % lane.queue_.size()] = slot->task;
    ++lane.size_;
    ++lane.calling_;
  }
  lane.on_done_();
  // Notified under the lock: the lane may be destroyed as soon as nobody is in here.
  const std::lock_guard lock(lane.mutex_);
  --lane.calling_;
  lane.done_.notify_one();
}

bool TransferLane::Take(Completion* completion) {
  {
    const std::lock_guard lock(mutex_);
    if (size_ == 0) return false;
    completion->task = queue_[head_];
    head_ = (head_ + 1) % queue_.size();
    --size_;
  }
  Slot& slot = slots_[completion->task];
  completion->wire_ns = slot.work->started_ns();
  completion->end_ns = slot.end_ns;
  completion->status = slot.work->WaitHost(0);
  slot.work->Release();
  slot.work = nullptr;
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}  // namespace engine
