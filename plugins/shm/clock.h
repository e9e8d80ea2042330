// CLOCK_MONOTONIC in nanoseconds, which is also what Work::started_ns tells.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace engine::shm {

inline int64_t NowNs() noexcept {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// A timeout beyond a year is no different from a year, and does not overflow.
inline int64_t AfterMs(int64_t now_ns, int64_t timeout_ms) noexcept {
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  return now_ns + std::clamp<int64_t>(timeout_ms, 0, kYearMs) * 1000000;
}

inline int64_t MsUntil(int64_t deadline_ns) noexcept {
  return std::max<int64_t>((deadline_ns - NowNs() + 999999) / 1000000, 0);
}

}  // namespace engine::shm
