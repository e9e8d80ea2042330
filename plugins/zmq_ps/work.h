// The Work of one transfer, from a pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "clock.h"
#include "engine/communicator.h"
#include "partition.h"
#include "units.h"
#include "wire.h"

namespace engine::zmq_ps {

class PooledWork;
class Worker;
class WorkPool;

// One slice of a transfer, on its way. Belongs to the worker's thread.
struct Request {
  PooledWork* work = nullptr;
  Slice slice;
  uint32_t index = 0;
  uint32_t first_row = 0;  // sparse: of Transfer::rows, those that lie in the slice
  uint32_t row_count = 0;
  uint64_t id = 0;          // 0: not sent yet
  Clock::time_point heard;  // when it was sent, or last asked about
  bool queued = false;      // to be pushed, for the first time or again
  bool done = false;
};

// Referenced by the caller until Release, and by the worker until it is terminal.
class PooledWork final : public Work {
 public:
  // Prepares a work of the pool. [io-lane]
  void Start(const Transfer& transfer, std::shared_ptr<WorkPool> pool) noexcept;

  const Transfer& transfer() const noexcept { return transfer_; }
  Clock::time_point deadline() const noexcept { return deadline_; }
  bool terminal() const noexcept { return state() != WorkState::kPending; }

  // Makes the work terminal, calls back and gives up the worker's reference; once, without locks.
  void Complete(Status status) noexcept;
  void MarkStarted() noexcept;

  WorkState state() const noexcept override { return state_.load(std::memory_order_acquire); }
  int64_t started_ns() const noexcept override {
    return started_ns_.load(std::memory_order_relaxed);
  }
  Status WaitHost(int64_t timeout_ms) noexcept override;
  Status WaitStream(Stream* stream) noexcept override;
  void OnDone(void (*callback)(void* context), void* context) noexcept override;
  void Release() noexcept override;

  // What is asked for, set by whoever submits the work, before that; and then constant.
  Operation operation = Operation::kAllReduce;
  ServedFields served;         // but for the number of rows of each request
  const Unit* unit = nullptr;  // of a served operation that is about one

  // Operation::kLastStep: the least of what servers said. Constant when the work is terminal.
  uint64_t last_step = kMaxStep;

  // For the worker that runs the transfer; constant or of its thread unless stated otherwise.
  Worker* worker = nullptr;    // constant from the start of the transfer
  PooledWork* next = nullptr;  // in lists of the worker, guarded by its mutex
  uint64_t match_key = 0;
  uint64_t round = 0;
  std::vector<Slice> slices;
  std::vector<Request> requests;  // one per slice, never moved while the transfer is under way
  size_t unanswered = 0;
  // Messages that refer to the caller's memory, plus one until all answers are there. Who takes it
  // to zero sees to it that the work becomes terminal.
  std::atomic<int64_t> memory_uses{0};

 private:
  void EndUse() noexcept;
  void Unreference() noexcept;

  // Constant from Start to the last Unreference.
  Transfer transfer_;
  Clock::time_point deadline_;
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
  // A started work; null when memory is out. Allocates only when more works are in use than ever
  // before. [io-lane]
  PooledWork* Take(const Transfer& transfer) noexcept;
  // Threads that wait for a work may do the work of `worker` meanwhile. With null: no longer, and
  // none does so when this returns; the worker must have failed. [any-thread]
  void LetHelp(Worker* worker) noexcept;
  // Helps until `work` is terminal or `deadline`, if there is a worker that takes help.
  // [any-thread]
  void Help(const PooledWork& work, Clock::time_point deadline) noexcept;
  void EndUse() noexcept { in_use_.fetch_sub(1, std::memory_order_relaxed); }  // [any-thread]
  void Return(PooledWork* work) noexcept;                                      // [any-thread]

 private:
  std::shared_mutex helping_;   // shared by those who help
  Worker* worker_ = nullptr;    // guarded by helping_
  std::atomic<int> in_use_{0};  // works that are not both released and terminal
  std::mutex mutex_;
  std::vector<std::unique_ptr<PooledWork>> all_;  // guarded by mutex_
  std::vector<PooledWork*> free_;                 // guarded by mutex_; has room for all_
};

}  // namespace engine::zmq_ps
