#pragma once

#include <chrono>
#include <cstdint>

namespace engine::base {

// CLOCK_MONOTONIC: the same for all processes of a host.
inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace engine::base
