// The I/O lane: transfers under way, and the queue in which their ends come back.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "engine/communicator.h"
#include "engine/status.h"

namespace engine {

class TransferLane {
 public:
  struct Completion {
    uint32_t task = 0;
    Status status;
  };

  // `capacity` tasks with ids below it.
  TransferLane(Communicator& communicator, size_t capacity);
  // Waits for what is under way, at most ten seconds: the owner has aborted the communicator
  // before.
  ~TransferLane();

  // Submits; the end of it will come out of Take. One transfer per task at a time. [compute-lane]
  Status Start(uint32_t task, const Transfer& transfer);

  // The next transfer that has ended, if any. [compute-lane]
  bool Take(Completion* completion);

  // Waits until there is something to Take, at most until `deadline`. [compute-lane]
  bool WaitUntil(std::chrono::steady_clock::time_point deadline);

  size_t in_flight() const { return in_flight_; }

 private:
  struct Slot {
    TransferLane* lane = nullptr;
    uint32_t task = 0;
    Work* work = nullptr;
  };
  static void OnDone(void* slot);

  Communicator& communicator_;
  std::vector<Slot> slots_;
  size_t in_flight_ = 0;  // started and not yet taken
  std::mutex mutex_;
  std::condition_variable done_;
  std::vector<uint32_t> queue_;  // guarded by mutex_; ids of ended tasks, a ring
  size_t head_ = 0, size_ = 0;   // guarded by mutex_
};

}  // namespace engine
