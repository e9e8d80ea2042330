#include "transfer_queue.h"

#include <exception>
#include <utility>

#include "clock.h"
#include "describe.h"
#include "futex.h"

namespace engine::shm {
namespace {

// How much later than its deadline a work is terminal at worst.
constexpr int64_t kGraceMs = 2000;

std::chrono::steady_clock::time_point PointOf(int64_t ns) noexcept {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace

// ---- The work, as its holder sees it.

WorkState QueuedWork::state() const noexcept {
  const WorkState state = state_.load(std::memory_order_acquire);
  // Who polls expects that it ends some time.
  if (state == WorkState::kPending) queue_.Want(const_cast<QueuedWork&>(*this));
  return state;
}

Status QueuedWork::WaitHost(int64_t timeout_ms) noexcept {
  return terminal() ? status_ : queue_.Wait(*this, timeout_ms);
}

Status QueuedWork::WaitStream(Stream*) noexcept {
  // Streams of the CPU run when they are asked to, so what the host does next is after the wait.
  return WaitHost(MsUntil(deadline_ns_) + kGraceMs);
}

void QueuedWork::OnDone(void (*callback)(void* context), void* context) noexcept {
  queue_.OnDone(*this, callback, context);
}

void QueuedWork::Release() noexcept {
  queue_.Release(*this);
}

// ---- Submission.

Status TransferQueue::Submit(const Transfer& transfer, Work** out) noexcept {
  const int64_t now = NowNs();
  Lock lock(mutex_);
  if (failure_.raised()) return failure_.reason();
  QueuedWork* const work = Take();
  if (!work) return Status::Error(StatusCode::kResourceExhausted, "no memory for a transfer");
  work->transfer_ = transfer;
  work->deadline_ns_ = AfterMs(now, transfer.timeout_ms);
  *out = work;
  if (!machine_.collectives) {
    work->started_ns_.store(now, std::memory_order_relaxed);
    RunAlone(transfer);
    End(*work, {});
    return {};
  }
  Append(work);
  if (head_ != work || running_) return {};
  OpenHead(now);
  if (work->opened_ && machine_.collectives->CanEndNow(transfer)) {
    RunHead(lock, /*is_worker=*/false);
  } else {
    Attend();
  }
  return {};
}

QueuedWork* TransferQueue::Take() noexcept {
  if (!free_) {
    try {
      all_.push_back(std::make_unique<QueuedWork>(*this));
      free_ = all_.back().get();
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  QueuedWork* const work = free_;
  free_ = work->next_;
  work->next_ = nullptr;
  work->state_.store(WorkState::kPending, std::memory_order_relaxed);
  work->started_ns_.store(0, std::memory_order_relaxed);
  work->asked_.store(false, std::memory_order_relaxed);
  work->status_ = {};
  work->callback_ = nullptr;
  work->opened_ = false;
  work->counted_ = false;
  work->released_ = false;
  ++unreleased_;
  return work;
}

void TransferQueue::Append(QueuedWork* work) noexcept {
  (head_ ? tail_->next_ : head_) = work;
  tail_ = work;
}

void TransferQueue::OpenHead(int64_t now_ns) noexcept {
  QueuedWork& work = *head_;
  work.opened_ = machine_.collectives->TryOpen(work.transfer_);
  if (work.opened_) work.started_ns_.store(now_ns, std::memory_order_relaxed);
}

// Tells peers whether they have to ring.
void TransferQueue::Attend() noexcept {
  machine_.own->unattended.store(head_ && !running_ ? 1 : 0, std::memory_order_relaxed);
}

// ---- Running.

void TransferQueue::RunPending() noexcept {
  Lock lock(mutex_);
  while (head_ && !running_) RunHead(lock, /*is_worker=*/true);
}

void TransferQueue::RunHead(Lock& lock, bool is_worker) noexcept {
  QueuedWork& work = *head_;
  running_ = true;
  ++inside_;
  Attend();
  lock.unlock();
  Status status = RunTransfer(work, is_worker);
  lock.lock();
  head_ = work.next_;
  running_ = false;
  if (work.counted_) --wanted_;
  void (*const callback)(void*) = std::exchange(work.callback_, nullptr);
  void* const context = work.callback_context_;
  End(work, std::move(status));
  if (head_ && !failure_.raised()) OpenHead(NowNs());
  Attend();
  if (head_ && !is_worker && (wanted_ > 0 || failure_.raised())) Ring(*machine_.own);
  if (callback) {
    lock.unlock();
    callback(context);
    lock.lock();
  }
  --inside_;
  if (sleepers_ > 0) changed_.notify_all();
}

Status TransferQueue::RunTransfer(QueuedWork& work, bool is_worker) noexcept {
  if (failure_.raised()) return failure_.reason();
  const Patience patience{
      .deadline_ns = work.deadline_ns_,
      .timeout_ms = work.transfer_.timeout_ms,
      .arrival_spin_ns = is_worker ? spin_.worker_arrival_ns : spin_.waiter_arrival_ns,
      .round_spin_ns = is_worker ? spin_.worker_round_ns : spin_.waiter_round_ns};
  Status status =
      machine_.collectives->Run(work.transfer_, work.opened_, work.started_ns_, patience);
  if (status.ok()) return status;
  if (failure_.raised()) return failure_.reason();
  return failure_.RaiseFound(status.WithContext("%s", Describe(work.transfer_).c_str()));
}

// Nothing of the work is used afterwards by who ends it.
void TransferQueue::End(QueuedWork& work, Status status) noexcept {
  const WorkState state = status.ok() ? WorkState::kDone : WorkState::kFailed;
  work.status_ = std::move(status);
  // Publishes status_ and what the transfer wrote to those who see it terminal.
  work.state_.store(state, std::memory_order_release);
  if (sleepers_ > 0) changed_.notify_all();
  if (work.released_) Recycle(work);
}

Status TransferQueue::Overdue(int64_t now_ns) noexcept {
  const Lock lock(mutex_);
  for (const QueuedWork* work = head_; work; work = work->next_) {
    if (now_ns < work->deadline_ns_) continue;
    return Status::Error(StatusCode::kTimeout, "%s was not done within %lld ms",
                         Describe(work->transfer_).c_str(),
                         static_cast<long long>(work->transfer_.timeout_ms));
  }
  return {};
}

// ---- Waiting.

// A waiter whose patience lasts as long as the transfer may run it, and those before it, instead of
// two threads waking each other. Not with a callback, which belongs on the worker's thread.
Status TransferQueue::Wait(QueuedWork& work, int64_t timeout_ms) noexcept {
  const bool patient = timeout_ms >= work.transfer_.timeout_ms;
  if (!patient) Want(work);
  int64_t give_up = 0;
  Lock lock(mutex_);
  while (!work.terminal()) {
    if (patient && !running_ && !head_->callback_) {
      RunHead(lock, /*is_worker=*/false);
      continue;
    }
    if (give_up == 0) {
      give_up = AfterMs(NowNs(), timeout_ms);
      Onlook(work, lock);
      continue;
    }
    ++sleepers_;
    const bool late = changed_.wait_until(lock, PointOf(give_up)) == std::cv_status::timeout;
    --sleepers_;
    if (late && !work.terminal()) {
      return Status::Error(StatusCode::kTimeout, "%s is still pending after a wait of %lld ms",
                           Describe(work.transfer_).c_str(), static_cast<long long>(timeout_ms));
    }
  }
  return work.status_;
}

void TransferQueue::Onlook(const QueuedWork& work, Lock& lock) noexcept {
  if (spin_.onlooker_ns == 0) return;
  lock.unlock();
  const int64_t end = NowNs() + spin_.onlooker_ns;
  while (!work.terminal() && NowNs() < end) Pause();
  lock.lock();
}

void TransferQueue::Want(QueuedWork& work) noexcept {
  if (work.asked_.exchange(true, std::memory_order_relaxed)) return;  // who polls does so often
  const Lock lock(mutex_);
  if (work.terminal()) return;
  work.counted_ = true;
  ++wanted_;
  if (!running_) Ring(*machine_.own);
}

void TransferQueue::OnDone(QueuedWork& work, void (*callback)(void*), void* context) noexcept {
  {
    const Lock lock(mutex_);
    if (!work.terminal()) {
      work.callback_ = callback;
      work.callback_context_ = context;
      callback = nullptr;
    }
  }
  if (callback) return callback(context);
  Want(work);
}

void TransferQueue::Release(QueuedWork& work) noexcept {
  if (!work.terminal()) Want(work);
  Lock lock(mutex_);
  work.released_ = true;
  --unreleased_;
  if (work.terminal()) Recycle(work);
  const bool last = closed_ && unreleased_ == 0;
  lock.unlock();
  if (last) delete this;
}

void TransferQueue::Recycle(QueuedWork& work) noexcept {
  work.next_ = free_;
  free_ = &work;
}

// ---- The end.

void TransferQueue::Drain() noexcept {
  Lock lock(mutex_);
  while (head_ || inside_ > 0) {
    if (!running_) Ring(*machine_.own);
    ++sleepers_;
    changed_.wait(lock);
    --sleepers_;
  }
}

void TransferQueue::Close() noexcept {
  Lock lock(mutex_);
  closed_ = true;
  const bool last = unreleased_ == 0;
  lock.unlock();
  if (last) delete this;
}

}  // namespace engine::shm
