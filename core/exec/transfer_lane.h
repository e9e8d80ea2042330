// The I/O lane: transfers under way, and the queue in which their ends come back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "core/trace/recorder.h"
#include "engine/communicator.h"
#include "engine/status.h"

namespace engine::exec {

class TransferLane {
 public:
  struct Completion {
    trace::Span span;  // that Start was given, with the times of the transfer
    Status status;
  };

  // Allocates when more than `capacity` transfers are under way. `on_done` is called after each
  // end, on a thread of the communicator or inside of Start.
  TransferLane(Communicator& communicator, size_t capacity, std::function<void()> on_done);
  ~TransferLane() { Drain(); }

  // Waits for what is under way and for `on_done`, at most ten seconds: the owner has aborted the
  // communicator before. Nothing is started after it.
  void Drain();

  // Submits; the end of it will come out of Take. `follower`, if not null, is made to wait for the
  // end. [one thread at a time]
  Status Start(const trace::Span& span, const Transfer& transfer, Stream* follower);

  // The next transfer that has ended, if any. [any-thread]
  bool Take(Completion* completion);

  size_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    TransferLane* lane = nullptr;
    trace::Span span;
    Work* work = nullptr;
    Slot* next = nullptr;  // of those that are free, or have ended
  };
  static void OnDone(void* slot);
  Slot* FreeSlot();

  Communicator& communicator_;
  const std::function<void()> on_done_;
  std::atomic<size_t> in_flight_{0};  // started and not yet taken
  std::mutex mutex_;
  std::condition_variable done_;
  std::deque<Slot> slots_;  // guarded by mutex_, as all below
  Slot* free_ = nullptr;
  Slot *ended_ = nullptr, *last_ended_ = nullptr;
  size_t calling_ = 0;  // threads in on_done_
};

}  // namespace engine::exec
