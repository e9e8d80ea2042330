#include "transfer_queue.h"

#include <utility>

#include "kit/describe.h"
#include "kit/thread.h"

namespace engine::shm {

void QueuedWork::Help(kit::Clock::time_point give_up) noexcept {
  queue_->Help(*this, give_up);
}

void QueuedWork::Want() noexcept {
  if (Has(kAsked) || (Set(kAsked) & kAsked) != 0) return;  // who polls does so often
  queue_->Want(*this);
}

// ---- Submission.

void TransferQueue::Submit(QueuedWork& work) noexcept {
  Lock lock(mutex_);
  work.queued_ = true;
  work.opened_ = work.counted_ = false;
  if (head_) tail_->next = &work;
  if (!head_) head_ = &work;
  tail_ = &work;
  if (head_ != &work || running_) return;
  OpenHead();
  if (work.opened_ && collectives_.CanEndNow(work.transfer())) {
    RunHead(lock, /*is_worker=*/false);
  } else {
    Attend();
  }
}

void TransferQueue::OpenHead() noexcept {
  head_->opened_ = collectives_.TryOpen(head_->transfer());
  if (head_->opened_) head_->MarkStarted();
}

// Tells peers whether they have to ring.
void TransferQueue::Attend() noexcept {
  own_.unattended.store(head_ && !running_ ? 1 : 0, std::memory_order_relaxed);
}

// ---- Running.

void TransferQueue::RunPending() noexcept {
  Lock lock(mutex_);
  while (head_ && !running_) RunHead(lock, /*is_worker=*/true);
}

// The head leaves the queue, and the next one is opened, before it is completed: a completed work
// may be another transfer at once.
void TransferQueue::RunHead(Lock& lock, bool is_worker) noexcept {
  QueuedWork& work = *head_;
  running_ = true;
  ++inside_;
  Attend();
  lock.unlock();
  Status status = RunTransfer(work, is_worker);
  lock.lock();
  head_ = static_cast<QueuedWork*>(work.next);
  running_ = work.queued_ = false;
  if (work.counted_) --wanted_;
  if (head_ && !failure_.raised()) OpenHead();
  Attend();
  if (head_ && !is_worker && (wanted_ > 0 || failure_.raised())) Ring(own_);
  lock.unlock();
  work.Complete(std::move(status));
  lock.lock();
  --inside_;
  if (sleepers_ > 0) changed_.notify_all();
}

Status TransferQueue::RunTransfer(QueuedWork& work, bool is_worker) noexcept {
  if (failure_.raised()) return failure_.reason();
  const WaitLimits limits{
      .work = work,
      .arrival_spin_ns = is_worker ? spin_.worker_arrival_ns : spin_.waiter_arrival_ns,
      .round_spin_ns = is_worker ? spin_.worker_round_ns : spin_.waiter_round_ns};
  const Status status = collectives_.Run(work, work.opened_, limits);
  if (status.ok()) return status;
  return failure_.Fail(status.WithContext("%s", kit::Describe(work.transfer()).c_str()));
}

Status TransferQueue::Overdue(kit::Clock::time_point now, kit::Clock::time_point moved) noexcept {
  const Lock lock(mutex_);
  for (const kit::PooledWork* work = head_; work; work = work->next) {
    if (now < work->DeadlineAfter(moved)) continue;
    return Status::Error(StatusCode::kTimeout, "%s did not move for %lld ms",
                         kit::Describe(work->transfer()).c_str(),
                         static_cast<long long>(work->transfer().timeout_ms));
  }
  return {};
}

// ---- Waiting.

// A waiter that waits as long as the transfer may take may run it, and those before it, instead of
// two threads waking each other. Not with a callback, which belongs on the worker's thread.
void TransferQueue::Help(QueuedWork& work, kit::Clock::time_point give_up) noexcept {
  const bool patient = give_up >= work.deadline();
  if (!patient) work.Want();
  bool looked = false, late = false;
  Lock lock(mutex_);
  while (!work.terminal() && !late) {
    if (patient && head_ && !running_ && !head_->has_callback()) {
      RunHead(lock, /*is_worker=*/false);
    } else if (!std::exchange(looked, true)) {
      Observe(work, lock);
    } else {
      ++sleepers_;
      late = changed_.wait_until(lock, give_up) == std::cv_status::timeout;
      --sleepers_;
    }
  }
}

void TransferQueue::Observe(const QueuedWork& work, Lock& lock) noexcept {
  if (spin_.onlooker_ns == 0) return;
  lock.unlock();
  const int64_t end = kit::MonotonicNs() + spin_.onlooker_ns;
  while (!work.terminal() && kit::MonotonicNs() < end) kit::Pause();
  lock.lock();
}

// Makes the worker run the queue as far as `work`.
void TransferQueue::Want(QueuedWork& work) noexcept {
  const Lock lock(mutex_);
  if (!work.queued_) return;  // not yet, or about to be completed
  work.counted_ = true;
  ++wanted_;
  if (!running_) Ring(own_);
}

// ---- The end.

// The failure is raised: the worker ends transfer after transfer at once. A waiter that runs the
// head is `inside_` until it uses nothing of this object any more.
void TransferQueue::Drain() noexcept {
  Lock lock(mutex_);
  while (head_ || inside_ > 0) {
    if (!running_) Ring(own_);
    ++sleepers_;
    changed_.wait(lock);
    --sleepers_;
  }
}

}  // namespace engine::shm
