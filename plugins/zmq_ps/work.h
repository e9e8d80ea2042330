// One transfer of a rank, and the requests that it is cut into.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <utility>
#include <vector>

#include "buckets.h"
#include "engine/communicator.h"
#include "kit/work.h"
#include "wire.h"

namespace engine::zmq_ps {

class Channel;
class TransferWork;
class Worker;

// One slice of a transfer, on its way. Of the thread that makes the worker's progress.
struct Request {
  TransferWork* work = nullptr;
  Channel* channel = nullptr;     // of the server that has the slice
  Header header;                  // its number is 0 until it is sent
  const int32_t* rows = nullptr;  // sparse: of TransferWork::rows, those that lie in the slice
  bool queued = false;            // to be sent, for the first time or again
  bool done = false;

  size_t row_count() const noexcept { return static_cast<size_t>(header.served.rows); }
};

// Between works and their worker, which may be gone while a caller still waits. [any-thread]
class ProgressGate {
 public:
  void Open(Worker* worker) noexcept { Set(worker); }
  // No thread makes progress when this returns. The worker must have failed, so that they leave.
  void Close() noexcept { Set(nullptr); }
  // The thread that waits for `work` does what its worker's thread would.
  void MakeProgress(const TransferWork& work, kit::Clock::time_point deadline) noexcept;

 private:
  void Set(Worker* worker) noexcept {
    const std::lock_guard lock(mutex_);
    worker_ = worker;
  }
  std::shared_mutex mutex_;
  Worker* worker_ = nullptr;  // guarded by mutex_
};

class TransferWork final : public kit::PooledWork {
 public:
  explicit TransferWork(std::shared_ptr<ProgressGate> gate) : gate_(std::move(gate)) {}

  // What is asked for; constant once the work is submitted.
  Operation operation = Operation::kAllReduce;
  ServedFields served;             // but for the number of rows of each request
  const Bucket* bucket = nullptr;  // of a served operation that is about one
  std::span<const int32_t> rows;   // sparse: those that travel

  // Operation::kLastStep: the least of what servers said. Constant when the work is terminal.
  uint64_t last_step = kMaxStep;

  // For the worker: of the thread that makes its progress.
  uint64_t number = 0;            // in the order of submission
  std::vector<Request> requests;  // one per slice, never moved while the transfer is under way
  size_t unanswered = 0;
  // See worker.cc. [any-thread]
  std::atomic<int64_t> memory_uses{0};

  bool sparse() const noexcept { return served.sparse(); }
  std::chrono::milliseconds timeout() const noexcept {
    return std::chrono::milliseconds(std::min(transfer().timeout_ms, kMaxTimeoutMs));
  }

  void Reset() noexcept {
    operation = OperationOf(transfer().kind);
    served = {};
    bucket = nullptr;
    rows = {};
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
    ENGINE_ASSIGN_OR_RETURN(kit::PooledWork* const work, pool_.Take(transfer));
    auto* const taken = static_cast<TransferWork*>(work);
    taken->Reset();
    return taken;
  }

 private:
  // The worker may hold a work for a moment after it is terminal and released, one at a time.
  static constexpr int kHeldByWorker = 2;

  const std::shared_ptr<ProgressGate> gate_ = std::make_shared<ProgressGate>();
  kit::WorkPool pool_{kHeldByWorker, kit::WorkPool::Of<TransferWork>(gate_)};
};

}  // namespace engine::zmq_ps
