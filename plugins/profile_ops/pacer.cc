#include "pacer.h"

#include <time.h>

#include <algorithm>
#include <cerrno>

namespace engine::profile_ops {
namespace {

using Clock = Pacer::Clock;

// What is made up for. More is not the clock's fault but that of a machine without a free
// processor, and shall be seen.
constexpr Clock::duration kMostLate = std::chrono::milliseconds(1);

void SleepUntil(Clock::time_point time) noexcept {
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::seconds;
  const auto since_boot = time.time_since_epoch();  // libstdc++: CLOCK_MONOTONIC
  const auto whole = duration_cast<seconds>(since_boot);
  timespec spec{};
  spec.tv_sec = whole.count();
  spec.tv_nsec = duration_cast<nanoseconds>(since_boot - whole).count();
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &spec, nullptr) == EINTR) {
  }
}

}  // namespace

void Pacer::Fill(Clock::time_point start, Clock::duration duration) noexcept {
  const Clock::time_point end = start + duration - late_;
  if (Clock::now() < end) SleepUntil(end);
  late_ = std::clamp(Clock::now() - end, Clock::duration(0), kMostLate);
}

}  // namespace engine::profile_ops
