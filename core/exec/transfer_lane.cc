// A slot is free, under way, or ended: each has its list. It goes from under way to ended once, on
// the thread of the communicator that calls OnDone (perhaps inside of Start), and from ended to free
// in Take, which releases the work; nobody else touches it meanwhile, so its span needs no lock.
// in_flight_ counts slots that are under way or ended: an owner that reads 0 has taken everything.
// on_done_ is called without the lock, as it takes the owner's, and calling_ keeps the lane alive
// until the last call has returned.
#include "core/exec/transfer_lane.h"

#include <utility>

#include "core/base/clock.h"

namespace engine::exec {

TransferLane::TransferLane(Communicator& communicator, size_t capacity,
                           std::function<void()> on_done)
    : communicator_(communicator), on_done_(std::move(on_done)), slots_(capacity) {
  for (Slot& slot : slots_) {
    slot.lane = this;
    slot.next = std::exchange(free_, &slot);
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
        lock, deadline, [this] { return ended_ || (in_flight() == 0 && calling_ == 0); });
    ENGINE_CHECK(in_time, "the communicator did not end %zu transfers after Abort", in_flight());
  }
}

TransferLane::Slot* TransferLane::FreeSlot() {
  const std::lock_guard lock(mutex_);
  if (free_ == nullptr) {
    free_ = &slots_.emplace_back();
    free_->lane = this;
  }
  return std::exchange(free_, free_->next);
}

Status TransferLane::Start(const trace::Span& span, const Transfer& transfer, Stream* follower) {
  Slot* const slot = FreeSlot();
  slot->span = span;
  Status status = communicator_.Submit(transfer, &slot->work);
  if (!status.ok()) {
    const std::lock_guard lock(mutex_);
    slot->next = std::exchange(free_, slot);
    return status;
  }
  // Relaxed: whoever reads it holds the lock of the owner, under which Take is called too.
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  // Before its end can be taken, which releases it.
  if (follower != nullptr) status = slot->work->WaitStream(follower);
  slot->work->OnDone(&TransferLane::OnDone, slot);
  return status;
}

void TransferLane::OnDone(void* context) {
  auto* slot = static_cast<Slot*>(context);
  TransferLane& lane = *slot->lane;
  slot->span.end_ns = base::NowNs();
  {
    const std::lock_guard lock(lane.mutex_);
    slot->next = nullptr;
    (lane.ended_ == nullptr ? lane.ended_ : lane.last_ended_->next) = slot;
    lane.last_ended_ = slot;
    ++lane.calling_;
  }
  lane.on_done_();
  // Notified under the lock: the lane may be destroyed as soon as nobody is in here.
  const std::lock_guard lock(lane.mutex_);
  --lane.calling_;
  lane.done_.notify_one();
}

bool TransferLane::Take(Completion* completion) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ == nullptr) return false;
    slot = std::exchange(ended_, ended_->next);
  }
  completion->span = slot->span;
  completion->span.wire_ns = slot->work->started_ns();
  completion->status = slot->work->WaitHost(0);
  slot->work->Release();
  const std::lock_guard lock(mutex_);
  slot->next = std::exchange(free_, slot);
  in_flight_.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

}  // namespace engine::exec
