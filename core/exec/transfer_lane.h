// The I/O lane: transfers under way, and the queue in which their ends come back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine {

class TransferLane {
 public:
  struct Completion {
    uint32_t task = 0;
    int64_t wire_ns = 0;  // see Work::started_ns
    int64_t end_ns = 0;
    Status status;
  };

  // `capacity` tasks with ids below it. `on_done` is called after each end, on a thread of the
  // communicator or inside of Start.
  TransferLane(Communicator& communicator, size_t capacity, std::function<void()> on_done);
  ~TransferLane() { Drain(); }

  // Waits for what is under way and for `on_done`, at most ten seconds: the owner has aborted the
  // communicator before. Nothing is started after it.
  void Drain();

  // Submits; the end of it will come out of Take. One transfer per task at a time. [one thread at a
  // time, as Take]
  Status Start(uint32_t task, const Transfer& transfer);

  // The next transfer that has ended, if any.
  bool Take(Completion* completion);

  size_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    TransferLane* lane = nullptr;
    uint32_t task = 0;
    Work* work = nullptr;
    int64_t end_ns = 0;
  };
  static void OnDone(void* slot);

  Communicator& communicator_;
  const std::function<void()> on_done_;
  std::vector<Slot> slots_;
  std::atomic<size_t> in_flight_{0};  // started and not yet taken
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<uint32_t> queue_;  // guarded by mutex_; ids of ended tasks, a ring
  size_t head_ = 0, size_ = 0;   // guarded by mutex_
  size_t calling_ = 0;           // guarded by mutex_; threads in on_done_
};

}  // namespace engine
