// Makes work last as long as it should.
#pragma once

#include <chrono>

namespace engine::profile_ops {

// Of one thread. A sleep ends late by what the kernel needs to wake a thread (some 60 us, more on
// a busy machine); the next one is shorter by it, so that the sum over a step is right.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  // Sleeps, and uses no processor, until `duration` has passed since `start`.
  void Fill(Clock::time_point start, Clock::duration duration) noexcept;

 private:
  Clock::duration late_{0};
};

}  // namespace engine::profile_ops
