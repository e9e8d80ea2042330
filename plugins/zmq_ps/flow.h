// How much is handed to ZeroMQ ahead of time: what it holds is beyond priorities.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <queue>
#include <utility>

#include "kit/communicator.h"
#include "polling.h"

namespace engine::zmq_ps {

using kit::Clock;

// Counts the messages whose memory libzmq has for one peer. They come back when their bytes are
// with the kernel, or when the connection ends.
class BorrowedBuffers {
 public:
  // `wake_up` is signalled when there is room again.
  explicit BorrowedBuffers(std::shared_ptr<WakeUp> wake_up) noexcept
      : wake_up_(std::move(wake_up)) {}

  void Borrow() noexcept { messages_.fetch_add(1); }
  void Return() noexcept {  // [any-thread]
    const int left = messages_.fetch_sub(1) - 1;
    if (left <= wake_at_.load()) wake_up_->Signal();
  }

  // Whether there are fewer than `most`. If not, there will be a signal when half of them are left,
  // so that several go at a time.
  bool HasRoom(int most) noexcept {
    if (messages_.load() < most) {
      wake_at_.store(kNever, std::memory_order_relaxed);  // who has room need not be woken
      return true;
    }
    wake_at_.store(most / 2);
    if (messages_.load() > most / 2) return false;  // else nobody may have seen what was stored
    wake_at_.store(kNever);
    return true;
  }

 private:
  static constexpr int kNever = -1;

  const std::shared_ptr<WakeUp> wake_up_;
  std::atomic<int> messages_{0};
  std::atomic<int> wake_at_{kNever};
};

struct FlowSettings {
  static constexpr uint64_t kAheadBytes = 3 << 19;
  static constexpr int kLeastAhead = 2, kMostAhead = 24;

  uint64_t slice_bytes = 1 << 20;  // the most that is sent at once
  int buffer_bytes = 0;            // of the kernel, per connection and direction; 0: its choice

  // How many messages ZeroMQ may hold for one peer: few, because what is urgent waits for them; but
  // the threads that move bytes wait for each other when they are too few.
  int ahead() const noexcept {
    return static_cast<int>(
        std::clamp<uint64_t>(kAheadBytes / slice_bytes, kLeastAhead, kMostAhead));
  }
};

// What waits to be sent to one peer.
// Largest priority first, and first in, first out among equals.
template <typename Item>
class SendQueue {
 public:
  bool empty() const { return heap_.empty(); }
  size_t size() const { return heap_.size(); }
  const Item& top() const { return heap_.top().item; }
  void Push(int32_t priority, Item item) { heap_.push({priority, next_++, item}); }
  void Pop() { heap_.pop(); }
  void Clear() { heap_ = {}; }

 private:
  struct Entry {
    int32_t priority;
    uint64_t order;  // no two are equal, so the order is strict
    Item item;
    bool operator<(const Entry& other) const {
      return priority != other.priority ? priority < other.priority : order > other.order;
    }
  };
  std::priority_queue<Entry> heap_;
  uint64_t next_ = 0;
};

}  // namespace engine::zmq_ps
