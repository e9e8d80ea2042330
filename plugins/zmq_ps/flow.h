// How much is handed to ZeroMQ ahead of time: what it holds is beyond priorities.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
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
  uint64_t slice_bytes = 1 << 20;  // the most that is sent at once
  int buffer_bytes = 0;            // of the kernel, per connection and direction; 0: its choice
};

// How many messages ZeroMQ may hold for one peer: few, because of priorities; but on a fast link
// the threads that move bytes wait for each other when they are too few. Follows the rate of the
// link, as it is seen while there is more to send than fits: slices for two milliseconds, or at
// least two. (Not done with ZeroMQ's high-water mark: lowered while messages wait, it may stop a
// connection for good.)
class SendAhead {
 public:
  static constexpr int kLeast = 2, kMost = 8;
  static constexpr auto kTime = std::chrono::microseconds(2000);

  // The kernels of both ends may keep `buffer_bytes` each, which look sent and are not.
  explicit SendAhead(const FlowSettings& settings) noexcept
      : slice_bytes_(settings.slice_bytes),
        kernel_bytes_(settings.buffer_bytes > 0 ? 2 * static_cast<uint64_t>(settings.buffer_bytes)
                                                : kUnknownKernelBytes) {}

  int messages() const noexcept { return messages_; }

  void Sent(uint64_t bytes) noexcept { bytes_ += bytes; }

  // A message did not fit and waits.
  void Full(Clock::time_point now) noexcept {
    switch (phase_) {
      case Phase::kIdle:
        return Begin(Phase::kFilling, now);
      case Phase::kFilling:
        if (bytes_ >= kernel_bytes_) Begin(Phase::kSampling, now);
        return;
      case Phase::kSampling:
        if (bytes_ < kSampleBytes) return;
        Choose(now - since_);
        return Begin(Phase::kSampling, now);
    }
  }

  // Nothing waits any more, so what comes next says nothing of the link.
  void Drained() noexcept { phase_ = Phase::kIdle; }

 private:
  static constexpr uint64_t kSampleBytes = 2 << 20;
  static constexpr uint64_t kUnknownKernelBytes = 16 << 20;
  enum class Phase { kIdle, kFilling, kSampling };  // kFilling: the kernels' memory

  void Begin(Phase phase, Clock::time_point now) noexcept {
    phase_ = phase;
    since_ = now;
    bytes_ = 0;
  }
  void Choose(Clock::duration time) noexcept {
    const double messages = static_cast<double>(bytes_) / static_cast<double>(slice_bytes_);
    const double rate = messages / std::max(std::chrono::duration<double>(time).count(), 1e-9);
    messages_ = static_cast<int>(std::clamp(rate * std::chrono::duration<double>(kTime).count(),
                                            double{kLeast}, double{kMost}));
  }

  const uint64_t slice_bytes_, kernel_bytes_;
  int messages_ = kLeast;
  Phase phase_ = Phase::kIdle;
  Clock::time_point since_{};  // begin of the phase
  uint64_t bytes_ = 0;         // sent since then
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
