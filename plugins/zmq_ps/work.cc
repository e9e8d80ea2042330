#include "work.h"

#include <exception>
#include <utility>

#include "describe.h"
#include "worker.h"

namespace engine::zmq_ps {
namespace {

// How much later than its deadline a work is terminal at worst: see Worker.
constexpr int64_t kGraceMs = 5000;

// The worker may hold a work for a moment after it is terminal and released, one at a time.
constexpr int kHeldByWorker = 2;

}  // namespace

void PooledWork::Start(const Transfer& transfer, std::shared_ptr<WorkPool> pool) noexcept {
  transfer_ = transfer;
  deadline_ = DeadlineIn(transfer.timeout_ms);
  pool_ = std::move(pool);
  operation = OperationOf(transfer.kind);
  served = {};
  unit = nullptr;
  last_step = kMaxStep;
  next = nullptr;
  started_ns_.store(0, std::memory_order_relaxed);
  references_.store(2, std::memory_order_relaxed);
  uses_.store(2, std::memory_order_relaxed);
  memory_uses.store(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  status_ = {};
  callback_ = nullptr;
  state_.store(WorkState::kPending, std::memory_order_relaxed);
}

void PooledWork::MarkStarted() noexcept {
  if (started_ns() == 0) started_ns_.store(MonotonicNs(), std::memory_order_relaxed);
}

void PooledWork::Complete(Status status) noexcept {
  EndUse();  // before a waiter can submit the next one
  void (*callback)(void*) = nullptr;
  void* context = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const WorkState state = status.ok() ? WorkState::kDone : WorkState::kFailed;
    status_ = std::move(status);
    // Publishes status_ and the received data to those who see the work terminal.
    state_.store(state, std::memory_order_release);
    callback = std::exchange(callback_, nullptr);
    context = callback_context_;
    done_.notify_all();
  }
  if (callback) callback(context);
  Unreference();
}

void PooledWork::Release() noexcept {
  EndUse();
  Unreference();
}

void PooledWork::Unreference() noexcept {
  // The last one must see what the other did to the work.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<WorkPool> pool = std::move(pool_);  // Return lets others take this work
  pool->Return(this);
}

void PooledWork::EndUse() noexcept {
  if (uses_.fetch_sub(1, std::memory_order_relaxed) == 1) pool_->EndUse();
}

Status PooledWork::WaitHost(int64_t timeout_ms) noexcept {
  const Clock::time_point deadline = DeadlineIn(timeout_ms);
  if (!terminal()) pool_->Help(*this, deadline);
  std::unique_lock lock(mutex_);
  if (!done_.wait_until(lock, deadline, [this] { return terminal(); })) {
    return Status::Error(StatusCode::kTimeout, "%s is still pending after a wait of %lld ms",
                         Describe(*this).c_str(), static_cast<long long>(timeout_ms));
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

PooledWork* WorkPool::Take(const Transfer& transfer) noexcept {
  PooledWork* work = nullptr;
  const int in_use = in_use_.fetch_add(1, std::memory_order_relaxed) + 1;
  try {
    const std::lock_guard lock(mutex_);
    const auto wanted = static_cast<size_t>(in_use + kHeldByWorker);
    while (all_.size() < wanted || free_.empty()) {
      free_.reserve(all_.size() + 1);
      all_.push_back(std::make_unique<PooledWork>());
      free_.push_back(all_.back().get());
    }
    work = free_.back();
    free_.pop_back();
  } catch (const std::exception&) {
    EndUse();
    return nullptr;
  }
  work->Start(transfer, shared_from_this());
  return work;
}

void WorkPool::LetHelp(Worker* worker) noexcept {
  const std::lock_guard lock(helping_);
  worker_ = worker;
}

void WorkPool::Help(const PooledWork& work, Clock::time_point deadline) noexcept {
  const std::shared_lock lock(helping_);
  if (worker_) worker_->Help(work, deadline);
}

void WorkPool::Return(PooledWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(work);  // within its capacity: see Take
}

}  // namespace engine::zmq_ps
