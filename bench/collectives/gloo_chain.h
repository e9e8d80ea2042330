// All-reduces of one size, several in flight, each submitted by the callback of an earlier one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "engine/communicator.h"

namespace engine::bench {

constexpr int64_t kTimeoutMs = 60000;

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// Transfers 0 .. total-1, with `in_flight` of them submitted and not done.
class Pipeline {
 public:
  Pipeline(Communicator& communicator, int64_t count, int in_flight, int64_t total,
           uint64_t* sequence)
      : communicator_(communicator), total_(total), sequence_(*sequence) {
    for (int i = 0; i < in_flight; ++i) slots_.push_back({this, nullptr, {}});
    for (Slot& slot : slots_) slot.data.resize(static_cast<size_t>(count));
  }

  void Run() {
    std::unique_lock lock(mutex_);
    for (Slot& slot : slots_) Submit(slot);
    const bool ended = end_.wait_for(lock, std::chrono::milliseconds(2 * kTimeoutMs), [this] {
      return done_ == submitted_ && submitted_ == total_;
    });
    if (!error_.ok()) ThrowIfError(error_);
    if (!ended) throw std::runtime_error("the transfers took too long");
  }

 private:
  struct Slot {
    Pipeline* pipeline = nullptr;
    Work* work = nullptr;
    std::vector<float> data;  // zeros, of which every sum is zero
  };

  void Submit(Slot& slot) {
    if (submitted_ == total_) return;
    ++submitted_;
    const Status status = communicator_.Submit({.send = slot.data.data(),
                                                .recv = slot.data.data(),
                                                .count = static_cast<int64_t>(slot.data.size()),
                                                .sequence = sequence_++,
                                                .timeout_ms = kTimeoutMs},
                                               &slot.work);
    if (!status.ok()) return Fail(status);
    slot.work->OnDone([](void* context) { OnDone(*static_cast<Slot*>(context)); }, &slot);
  }

  static void OnDone(Slot& slot) {
    Pipeline& self = *slot.pipeline;
    const std::lock_guard lock(self.mutex_);
    const Status status = slot.work->WaitHost(0);
    slot.work->Release();
    ++self.done_;
    if (!status.ok()) return self.Fail(status);
    self.Submit(slot);
    if (self.done_ == self.total_) self.end_.notify_all();
  }

  void Fail(const Status& status) {
    if (error_.ok()) error_ = status;
    total_ = done_ = submitted_;
    end_.notify_all();
  }

  Communicator& communicator_;
  std::recursive_mutex mutex_;  // a transfer may end within OnDone
  std::condition_variable_any end_;
  std::deque<Slot> slots_;
  int64_t total_;
  int64_t submitted_ = 0, done_ = 0;
  uint64_t& sequence_;
  Status error_;
};
}  // namespace engine::bench
