// How much is handed to ZeroMQ ahead of time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "clock.h"

namespace engine::zmq_ps {

// How many messages ZeroMQ may hold for one peer. What it holds is beyond priorities, so these are
// few; but on a fast link the threads that move bytes wait for each other when they are too few.
// Follows the rate of the link, as it is seen while there is more to send than fits: messages of
// `message_bytes` for two milliseconds, or at least two. (Not done with ZeroMQ's high-water mark:
// lowered while messages wait, it may stop a connection for good.)
class SendAhead {
 public:
  static constexpr int kLeast = 2, kMost = 8;
  static constexpr auto kTime = std::chrono::microseconds(2000);

  // The kernels of both ends may keep `buffer_bytes` each, which look sent and are not; 0: as much
  // as the system likes.
  SendAhead(uint64_t message_bytes, int buffer_bytes) noexcept
      : message_bytes_(message_bytes),
        kernel_bytes_(buffer_bytes > 0 ? 2 * static_cast<uint64_t>(buffer_bytes)
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
    const double messages = static_cast<double>(bytes_) / static_cast<double>(message_bytes_);
    const double rate = messages / std::max(std::chrono::duration<double>(time).count(), 1e-9);
    messages_ = static_cast<int>(std::clamp(rate * std::chrono::duration<double>(kTime).count(),
                                            double{kLeast}, double{kMost}));
  }

  const uint64_t message_bytes_, kernel_bytes_;
  int messages_ = kLeast;
  Phase phase_ = Phase::kIdle;
  Clock::time_point since_{};  // begin of the phase
  uint64_t bytes_ = 0;         // sent since then
};

}  // namespace engine::zmq_ps
