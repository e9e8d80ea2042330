// The Work of one transfer, or of a group of them, from a pool.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "clock.h"
#include "engine/communicator.h"

namespace engine::nccl {

class Pipeline;
class WorkPool;

// Referenced by the caller until Release, and by the pipeline until it is terminal.
class GpuWork final : public Work {
 public:
  ~GpuWork() override;

  // Of a group: the first one, with the stream and the earliest deadline of all.
  const Transfer& transfer() const noexcept { return transfer_; }
  std::span<const Transfer> transfers() const noexcept {
    return group_.empty() ? std::span(&transfer_, 1) : group_;
  }
  // Of one whose data were ready when it was submitted; of others max(): theirs begins later.
  Clock::time_point deadline() const noexcept { return deadline_; }
  int64_t submitted_ns() const noexcept { return submitted_ns_; }

  // For the pipeline, in this order:

  // The transfer is queued on the GPU, and end_event() is recorded behind it.
  void SetLaunched() noexcept;
  bool launched() const noexcept { return launched_.load(std::memory_order_acquire); }
  void SetStarted(int64_t now_ns) noexcept { started_ns_.store(now_ns, std::memory_order_relaxed); }
  // Makes the work terminal and calls back; once. The caller holds a reference and no lock.
  void Complete(Status status) noexcept;
  // Gives up a reference; with the last one the work goes back to the pool.
  void Unreference() noexcept;

  cudaEvent_t ready_event() const noexcept { return ready_event_; }
  cudaEvent_t end_event() const noexcept { return end_event_; }

  // Work:
  WorkState state() const noexcept override { return state_.load(std::memory_order_acquire); }
  int64_t started_ns() const noexcept override {
    return started_ns_.load(std::memory_order_relaxed);
  }
  Status WaitHost(int64_t timeout_ms) noexcept override;
  Status WaitStream(Stream* stream) noexcept override;
  void OnDone(void (*callback)(void* context), void* context) noexcept override;
  void Release() noexcept override;

 private:
  friend class Pipeline;
  friend class WorkPool;

  Status MakeEvents() noexcept;
  Status AwaitLaunch() noexcept;  // also returns why there is none
  void Start(const Transfer& transfer, std::shared_ptr<WorkPool> pool) noexcept;
  void EndUse() noexcept;
  bool terminal() const noexcept { return state() != WorkState::kPending; }
  Status StillPending(int64_t timeout_ms) const noexcept;

  // Constant from the first use on. Neither keeps a time.
  cudaEvent_t ready_event_ = nullptr;  // recorded where `send` is made
  cudaEvent_t end_event_ = nullptr;    // recorded behind the transfer

  // Constant from the end of Submit to the last Unreference.
  Transfer transfer_;
  std::vector<Transfer> group_;  // empty: transfer_ is all
  Clock::time_point deadline_;
  int64_t submitted_ns_ = 0;
  bool waits_ = false;     // for ready_event_
  bool recorded_ = false;  // part of a recording: streams may wait for it, the host need not
  std::shared_ptr<WorkPool> pool_;

  // For the pipeline: its queue is a list through its works, guarded by its mutex.
  GpuWork* next_ = nullptr;
  uint64_t number_ = 0;  // position in the order of submission, from 0; constant like transfer_

  std::atomic<int64_t> started_ns_{0};  // publishes nothing
  std::atomic<int> references_{0};
  std::atomic<int> uses_{0};           // 2 at the start; released and terminal take one each
  std::atomic<bool> launched_{false};  // written under mutex_; publishes the record of end_event_
  std::atomic<WorkState> state_{WorkState::kPending};  // written under mutex_; publishes status_

  std::mutex mutex_;
  std::condition_variable changed_;
  int waiters_ = 0;  // these four guarded by mutex_
  Status status_;
  void (*callback_)(void* context) = nullptr;
  void* callback_context_ = nullptr;
};

// Works for reuse. Outlives the communicator while a caller holds a work.
class WorkPool : public std::enable_shared_from_this<WorkPool> {
 public:
  // A started work with two references. Allocates, and makes events on the current GPU, only when
  // more works are in use than ever before. [io-lane]
  Result<GpuWork*> Take(const Transfer& transfer) noexcept;
  void EndUse() noexcept { in_use_.fetch_sub(1, std::memory_order_relaxed); }  // [any-thread]
  void Return(GpuWork* work) noexcept;                                         // [any-thread]

 private:
  Status Grow();

  std::atomic<int> in_use_{0};  // neither released nor terminal, or only one of the two
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuWork>> all_;  // guarded by mutex_
  std::vector<GpuWork*> free_;                 // guarded by mutex_; has room for all_
};

}  // namespace engine::nccl
