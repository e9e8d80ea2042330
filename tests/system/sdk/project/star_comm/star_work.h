// One transfer of star_comm and its outcome.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "connection.h"
#include "engine/communicator.h"

namespace star_comm {

class StarWork;

// Works that nobody uses, kept so that a step allocates nothing. A caller may release a work after
// the communicator is gone, so every work in use holds its pool.
class WorkPool {
 public:
  ~WorkPool();
  // A pending work for `transfer`; null when there is no memory.
  static StarWork* Take(const std::shared_ptr<WorkPool>& pool,
                        const engine::Transfer& transfer) noexcept;
  void Give(StarWork* work) noexcept;

 private:
  std::mutex mutex_;
  StarWork* first_ = nullptr;  // guarded by mutex_
};

class StarWork final : public engine::Work {
 public:
  engine::WorkState state() const noexcept override {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  int64_t started_ns() const noexcept override {
    return started_ns_.load(std::memory_order_relaxed);
  }

  engine::Status WaitHost(int64_t timeout_ms) noexcept override {
    std::unique_lock lock(mutex_);
    const auto is_terminal = [this] { return state_ != engine::WorkState::kPending; };
    if (terminal_.wait_for(lock, std::chrono::milliseconds(timeout_ms), is_terminal)) {
      return outcome_;
    }
    return engine::Status::Error(engine::StatusCode::kTimeout, "the transfer is still under way");
  }

  engine::Status WaitStream(engine::Stream*) noexcept override {
    return WaitHost(transfer_.timeout_ms);
  }

  void OnDone(void (*callback)(void*), void* context) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (state_ == engine::WorkState::kPending) {
        callback_ = callback;
        context_ = context;
        return;
      }
    }
    callback(context);
  }

  void Release() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      released_ = true;
      if (state_ == engine::WorkState::kPending) return;  // Finish gives it back
    }
    GiveBack();
  }

  // The rest is for the communicator.
  const engine::Transfer& transfer() const noexcept { return transfer_; }
  Deadline deadline() const noexcept { return deadline_; }

  // The first byte is about to leave.
  void Begin() noexcept {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    started_ns_.store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(),
                      std::memory_order_relaxed);
  }
  // Once. From the moment that the lock is free the work may be another transfer already.
  void Finish(const engine::Status& outcome) noexcept {
    std::unique_lock lock(mutex_);
    outcome_ = outcome;
    state_ = outcome.ok() ? engine::WorkState::kDone : engine::WorkState::kFailed;
    const auto callback = callback_;
    void* const context = context_;
    const bool released = released_;
    terminal_.notify_all();
    lock.unlock();
    if (callback) callback(context);
    if (released) GiveBack();
  }

  StarWork* next = nullptr;  // in the queue of the communicator, or in the pool

 private:
  friend class WorkPool;

  void Start(const std::shared_ptr<WorkPool>& pool, const engine::Transfer& transfer) noexcept {
    pool_ = pool;
    transfer_ = transfer;
    deadline_ = After(transfer.timeout_ms);
    next = nullptr;
    started_ns_.store(0, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    state_ = engine::WorkState::kPending;
    outcome_ = {};
    callback_ = nullptr;
    released_ = false;
  }

  void GiveBack() noexcept {
    const std::shared_ptr<WorkPool> pool = std::move(pool_);
    pool->Give(this);
  }

  std::shared_ptr<WorkPool> pool_;  // null while in the pool
  engine::Transfer transfer_;
  Deadline deadline_;
  std::atomic<int64_t> started_ns_{0};
  mutable std::mutex mutex_;
  std::condition_variable terminal_;
  // Guarded by mutex_:
  engine::WorkState state_ = engine::WorkState::kPending;
  engine::Status outcome_;
  void (*callback_)(void*) = nullptr;
  void* context_ = nullptr;
  bool released_ = false;
};

inline WorkPool::~WorkPool() {
  while (first_) delete std::exchange(first_, first_->next);
}

inline StarWork* WorkPool::Take(const std::shared_ptr<WorkPool>& pool,
                                const engine::Transfer& transfer) noexcept {
  StarWork* work = nullptr;
  {
    const std::lock_guard lock(pool->mutex_);
    if (pool->first_) work = std::exchange(pool->first_, pool->first_->next);
  }
  if (!work) work = new (std::nothrow) StarWork;
  if (work) work->Start(pool, transfer);
  return work;
}

inline void WorkPool::Give(StarWork* work) noexcept {
  const std::lock_guard lock(mutex_);
  work->next = std::exchange(first_, work);
}

}  // namespace star_comm
