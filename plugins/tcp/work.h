// The Work of one transfer, from a pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "clock.h"
#include "engine/communicator.h"

namespace engine::tcp {

class Lane;
class WorkPool;

// Referenced by the caller until Release, and by the lane until it is terminal.
class PooledWork final : public Work {
 public:
  // How long a waiter looks for the end before it sleeps; 0 where cores are scarce.
  explicit PooledWork(std::chrono::microseconds spin) : spin_(spin) {}

  // Prepares a work that came from the pool, with `references` to it. [io-lane]
  void Start(const Transfer& transfer, int references, std::shared_ptr<WorkPool> pool) noexcept;
  // Who may run the transfer on a waiter's thread; before the lane knows of the work. [io-lane]
  void set_lane(Lane* lane) noexcept { lane_ = lane; }

  const Transfer& transfer() const noexcept { return transfer_; }
  // For who runs the transfer.
  std::atomic<int64_t>& started_cell() noexcept { return started_ns_; }
  Clock::time_point deadline() const noexcept { return deadline_; }

  // Makes the work terminal and calls back; once. The caller holds a reference and no lock.
  void Complete(Status status) noexcept;
  // Gives up a reference; with the last one the work goes back to the pool.
  void Unreference() noexcept;

  WorkState state() const noexcept override { return state_.load(std::memory_order_acquire); }
  int64_t started_ns() const noexcept override {
    return started_ns_.load(std::memory_order_relaxed);
  }
  Status WaitHost(int64_t timeout_ms) noexcept override;
  Status WaitStream(Stream* stream) noexcept override;
  void OnDone(void (*callback)(void* context), void* context) noexcept override;
  void Release() noexcept override;

 private:
  friend class Lane;
  void EndUse() noexcept;

  // For the lane of this work: its queue is a list through its works, guarded by the lane's mutex.
  PooledWork* next_ = nullptr;

  bool terminal() const noexcept { return state() != WorkState::kPending; }
  bool MayRunHere(Clock::time_point give_up) noexcept;
  void Spin(Clock::time_point give_up) const noexcept;

  const std::chrono::microseconds spin_;

  // Constant from Start to the last Unreference.
  Transfer transfer_;
  Clock::time_point deadline_;
  Lane* lane_ = nullptr;
  std::shared_ptr<WorkPool> pool_;

  std::atomic<int64_t> started_ns_{0};  // publishes nothing
  std::atomic<int> references_{0};
  std::atomic<int> uses_{0};  // 2 at the start; released and terminal take one each
  std::atomic<WorkState> state_{WorkState::kPending};  // written under mutex_; publishes status_

  std::mutex mutex_;
  std::condition_variable done_;
  Status status_;  // these three guarded by mutex_
  void (*callback_)(void* context) = nullptr;
  void* callback_context_ = nullptr;
};

// Works for reuse. Outlives the communicator while a caller holds a work.
class WorkPool : public std::enable_shared_from_this<WorkPool> {
 public:
  // A lane may still hold a work for a moment after it is terminal and released: `lanes` at most.
  WorkPool(std::chrono::microseconds spin, int lanes) : spin_(spin), lanes_(lanes) {}

  // A started work; null when memory is out. Allocates only when more works are in use than ever
  // before. [io-lane]
  PooledWork* Take(const Transfer& transfer, int references) noexcept;
  void EndUse() noexcept { in_use_.fetch_sub(1, std::memory_order_relaxed); }  // [any-thread]
  void Return(PooledWork* work) noexcept;                                      // [any-thread]

 private:
  const std::chrono::microseconds spin_;
  const int lanes_;
  std::atomic<int> in_use_{0};  // neither released nor terminal, or only one of the two
  std::mutex mutex_;
  std::vector<std::unique_ptr<PooledWork>> all_;  // guarded by mutex_
  std::vector<PooledWork*> free_;                 // guarded by mutex_; has room for all_
};

}  // namespace engine::tcp
