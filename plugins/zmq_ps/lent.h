// Tensor bytes in the hands of libzmq.
#pragma once

#include <atomic>
#include <memory>

#include "wake_up.h"

namespace engine::zmq_ps {

// Counts the messages whose memory libzmq has for one peer. They are given back when their bytes
// are with the kernel, or when the connection ends.
class Lent {
 public:
  // `wake_up` is signalled when there is room again.
  explicit Lent(std::shared_ptr<WakeUp> wake_up) noexcept : wake_up_(std::move(wake_up)) {}

  void Lend() noexcept { messages_.fetch_add(1); }
  void GiveBack() noexcept {  // [any-thread]
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

}  // namespace engine::zmq_ps
