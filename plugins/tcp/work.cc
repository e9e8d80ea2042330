#include "work.h"

#include <exception>
#include <utility>

#include "describe.h"
#include "lane.h"

namespace engine::tcp {
namespace {

// How much later than its deadline a work is terminal at worst: see Watchdog.
constexpr int64_t kGraceMs = 2000;

inline void Pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void PooledWork::Start(const Transfer& transfer, int references,
                       std::shared_ptr<WorkPool> pool) noexcept {
  transfer_ = transfer;
  deadline_ = DeadlineIn(transfer.timeout_ms);
  lane_ = nullptr;
  pool_ = std::move(pool);
  next_ = nullptr;
  started_ns_.store(0, std::memory_order_relaxed);
  references_.store(references, std::memory_order_relaxed);
  uses_.store(2, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  status_ = {};
  callback_ = nullptr;
  state_.store(WorkState::kPending, std::memory_order_relaxed);
}

void PooledWork::Complete(Status status) noexcept {
  EndUse();  // before a waiter can submit the next one
  void (*callback)(void*) = nullptr;
  void* context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const WorkState state = status.ok() ? WorkState::kDone : WorkState::kFailed;
    status_ = std::move(status);
    // Publishes status_ and what the transfer wrote to those who see it terminal.
    state_.store(state, std::memory_order_release);
    callback = std::exchange(callback_, nullptr);
    context = callback_context_;
    done_.notify_all();
  }
  if (callback) callback(context);
}

void PooledWork::Unreference() noexcept {
  // The last one must see what all others did to the work.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<WorkPool> pool = std::move(pool_);  // Return lets others take this work
  pool->Return(this);
}

void PooledWork::Release() noexcept {
  EndUse();
  Unreference();
}

void PooledWork::EndUse() noexcept {
  if (uses_.fetch_sub(1, std::memory_order_relaxed) == 1) pool_->EndUse();
}

Status PooledWork::WaitHost(int64_t timeout_ms) noexcept {
  const Clock::time_point give_up = DeadlineIn(timeout_ms);
  if (!terminal() && MayRunHere(give_up)) lane_->RunIfNext(this);
  Spin(give_up);
  std::unique_lock lock(mutex_);
  if (!done_.wait_until(lock, give_up, [this] { return terminal(); })) {
    return Status::Error(StatusCode::kTimeout, "%s is still pending after a wait of %lld ms",
                         Describe(transfer_).c_str(), static_cast<long long>(timeout_ms));
  }
  return status_;
}

Status PooledWork::WaitStream(Stream*) noexcept {
  // Streams of the CPU run when they are asked to, so what the host does next is after the wait.
  return WaitHost(MillisecondsUntil(deadline_) + kGraceMs);
}

void PooledWork::OnDone(void (*callback)(void* context), void* context) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!terminal()) {
      callback_ = callback;
      callback_context_ = context;
      return;
    }
  }
  callback(context);
}

// A waiter whose patience lasts as long as the transfer may run it itself instead of two threads
// waking each other. Not with a callback, which belongs on a thread of the communicator.
bool PooledWork::MayRunHere(Clock::time_point give_up) noexcept {
  if (!lane_ || give_up < deadline_) return false;
  const std::lock_guard lock(mutex_);
  return !callback_;
}

void PooledWork::Spin(Clock::time_point give_up) const noexcept {
  if (spin_.count() == 0) return;
  const Clock::time_point end = std::min(give_up, Clock::now() + spin_);
  while (!terminal() && Clock::now() < end) Pause();
}

PooledWork* WorkPool::Take(const Transfer& transfer, int references) noexcept {
  PooledWork* work = nullptr;
  const int in_use = in_use_.fetch_add(1, std::memory_order_relaxed) + 1;
  try {
    const std::lock_guard lock(mutex_);
    const auto wanted = static_cast<size_t>(in_use + lanes_);
    while (all_.size() < wanted || free_.empty()) {
      free_.reserve(all_.size() + 1);
      all_.push_back(std::make_unique<PooledWork>(spin_));
      free_.push_back(all_.back().get());
    }
    work = free_.back();
    free_.pop_back();
  } catch (const std::exception&) {
    EndUse();
    return nullptr;
  }
  work->Start(transfer, references, shared_from_this());
  return work;
}

void WorkPool::Return(PooledWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(work);  // within its capacity: see Take
}

}  // namespace engine::tcp
