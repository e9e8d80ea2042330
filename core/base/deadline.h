// Deadlines on the steady clock: setting the time of day moves none of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace engine::base {

using TimePoint = std::chrono::steady_clock::time_point;

// `timeout_ms` from now; a timeout beyond a year means a year, so the sum cannot overflow.
inline TimePoint DeadlineIn(int64_t timeout_ms) {
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  return std::chrono::steady_clock::now() +
         std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms, 0, kYearMs));
}

// What is left until `deadline`, rounded up, in [0, cap_ms]: the timeout of one poll().
inline int RemainingMs(TimePoint deadline, int cap_ms = 1000) {
  auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, cap_ms));
}

inline bool Passed(TimePoint deadline) {
  return std::chrono::steady_clock::now() >= deadline;
}

}  // namespace engine::base
