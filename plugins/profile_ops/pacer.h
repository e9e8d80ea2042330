// Makes work last as long as it should.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace engine::profile_ops {

// Of one thread. A sleep ends late by what the kernel needs to wake a thread (some 60 us, more on
// a busy machine); the next one is shorter by it, so that the sum over a step is right.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  // Sleeps, and uses no processor, until `duration` has passed since `start`.
  void Fill(Clock::time_point start, Clock::duration duration) {
    // What is made up for. More is not the clock's fault but that of a machine without a free
    // processor, and shall be seen.
    constexpr Clock::duration kMostLate = std::chrono::milliseconds(1);
    const Clock::time_point end = start + duration - late_;
    std::this_thread::sleep_until(end);
    late_ = std::clamp(Clock::now() - end, Clock::duration(0), kMostLate);
  }

 private:
  Clock::duration late_{0};
};

}  // namespace engine::profile_ops
