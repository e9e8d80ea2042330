// For how long nothing was heard of a peer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "app/launch/deadlines.h"
#include "core/base/deadline.h"

namespace engine::launch {

// Of one thread. A look counts at most 2 * kPingMs: when the watcher itself was stopped (Ctrl-Z, a
// paused machine) or got no processor, the time since its last look says nothing of the peer.
class Silence {
 public:
  void Heard() {
    ms_ = 0;
    looked_at_ = std::chrono::steady_clock::now();
  }
  // Look at least every kPingMs.
  int64_t Look() {
    const base::TimePoint now = std::chrono::steady_clock::now();
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - looked_at_);
    ms_ += std::min<int64_t>(passed.count(), 2 * kPingMs);
    looked_at_ = now;
    return ms_;
  }

 private:
  int64_t ms_ = 0;
  base::TimePoint looked_at_ = std::chrono::steady_clock::now();
};

}  // namespace engine::launch
