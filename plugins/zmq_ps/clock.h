// Points of the monotonic clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace engine::zmq_ps {

using Clock = std::chrono::steady_clock;

// A timeout beyond a year is as good as a year, and does not overflow.
inline Clock::time_point DeadlineIn(int64_t timeout_ms) noexcept {
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  return Clock::now() + std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms, 0, kYearMs));
}

// CLOCK_MONOTONIC, as Work::started_ns tells it.
inline int64_t MonotonicNs() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

inline int64_t MillisecondsUntil(Clock::time_point deadline) noexcept {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return std::max<int64_t>(left, 0);
}

}  // namespace engine::zmq_ps
