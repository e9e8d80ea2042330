// One transfer of a rank, and the requests that it is cut into.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "describe.h"
#include "engine/communicator.h"
#include "kit/work.h"
#include "partition.h"
#include "units.h"
#include "wire.h"

namespace engine::zmq_ps {

class Channel;
class TransferWork;

// One slice of a transfer, on its way. Of the thread that makes the worker's progress.
struct Request {
  TransferWork* work = nullptr;
  Channel* channel = nullptr;  // that its memory was handed to libzmq for
  Slice slice;
  uint32_t index = 0;
  uint32_t first_row = 0;  // sparse: of Transfer::rows, those that lie in the slice
  uint32_t row_count = 0;
  uint64_t id = 0;      // 0: not sent yet
  bool queued = false;  // to be sent, for the first time or again
  bool done = false;
};

// Who does the work of a thread that waits for it.
class ProgressMaker {
 public:
  // [any-thread]
  virtual void MakeProgress(const TransferWork& work, kit::Clock::time_point deadline) noexcept = 0;

 protected:
  ~ProgressMaker() = default;
};

// Between works and their worker, which may be gone while a caller still waits. [any-thread]
class ProgressGate {
 public:
  void Open(ProgressMaker* worker) noexcept { Set(worker); }
  // No thread makes progress when this returns. The worker must have failed, so that they leave.
  void Close() noexcept { Set(nullptr); }
  void MakeProgress(const TransferWork& work, kit::Clock::time_point deadline) noexcept {
    const std::shared_lock lock(mutex_);
    if (worker_) worker_->MakeProgress(work, deadline);
  }

 private:
  void Set(ProgressMaker* worker) noexcept {
    const std::lock_guard lock(mutex_);
    worker_ = worker;
  }
  std::shared_mutex mutex_;
  ProgressMaker* worker_ = nullptr;  // guarded by mutex_
};

class TransferWork final : public kit::PooledWork {
 public:
  explicit TransferWork(std::shared_ptr<ProgressGate> gate) : gate_(std::move(gate)) {}

  // What is asked for; constant once the work is submitted.
  Operation operation = Operation::kAllReduce;
  ServedFields served;         // but for the number of rows of each request
  const Unit* unit = nullptr;  // of a served operation that is about one
  uint64_t order = 0;          // of transfers that are matched by their position: which one

  // Operation::kLastStep: the least of what servers said. Constant when the work is terminal.
  uint64_t last_step = kMaxStep;

  // For the worker: of the thread that makes its progress.
  uint64_t match_key = 0;
  uint64_t round = 0;
  std::vector<Slice> slices;
  std::vector<Request> requests;  // one per slice, never moved while the transfer is under way
  size_t unanswered = 0;
  // See worker.cc. [any-thread]
  std::atomic<int64_t> memory_uses{0};

  bool sparse() const noexcept { return served.sparse(); }

  void Reset() noexcept {
    operation = OperationOf(transfer().kind);
    served = {};
    unit = nullptr;
    order = 0;
    last_step = kMaxStep;
    memory_uses.store(1, std::memory_order_relaxed);
  }

 private:
  void Help(kit::Clock::time_point give_up) noexcept override {
    gate_->MakeProgress(*this, give_up);
  }
  Text Words() const noexcept override { return Describe(transfer(), operation); }

  const std::shared_ptr<ProgressGate> gate_;
};

// The works of one worker.
class Works {
 public:
  ProgressGate& gate() noexcept { return *gate_; }
  Result<TransferWork*> Take(const Transfer& transfer) noexcept {
    ENGINE_ASSIGN_OR_RETURN(kit::PooledWork* const work, pool_->Take(transfer));
    auto* const taken = static_cast<TransferWork*>(work);
    taken->Reset();
    return taken;
  }

 private:
  // The worker may hold a work for a moment after it is terminal and released, one at a time.
  static constexpr int kHeldByWorker = 2;

  const std::shared_ptr<ProgressGate> gate_ = std::make_shared<ProgressGate>();
  const std::shared_ptr<kit::WorkPool> pool_ =
      kit::WorkPool::Create(kHeldByWorker, [gate = gate_]() {
        return Result<std::unique_ptr<kit::PooledWork>>(std::make_unique<TransferWork>(gate));
      });
};

}  // namespace engine::zmq_ps
