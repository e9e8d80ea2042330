// Points of the monotonic clock, and a thread that looks when one of them has passed.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "kit/thread.h"

namespace engine::kit {

using Clock = std::chrono::steady_clock;

// A timeout beyond a year is no different from a year, and does not overflow.
inline std::chrono::milliseconds Timeout(int64_t timeout_ms) noexcept {
  constexpr int64_t kYearMs = int64_t{365} * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::clamp<int64_t>(timeout_ms, 0, kYearMs));
}
inline Clock::time_point DeadlineIn(int64_t timeout_ms) noexcept {
  return Clock::now() + Timeout(timeout_ms);
}

// CLOCK_MONOTONIC, as Work::started_ns tells it.
inline int64_t MonotonicNs() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
      .count();
}

// Between ticks of the kernel, at most.
constexpr std::chrono::milliseconds kCoarseTick(10);
// The same clock as of the last tick, for deadlines, at a quarter of the price.
inline Clock::time_point CoarseNow() noexcept {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return Clock::time_point(std::chrono::seconds(now.tv_sec) +
                           std::chrono::nanoseconds(now.tv_nsec));
}

// Rounded up, so that who waits so long has reached the deadline.
inline int64_t MillisecondsUntil(Clock::time_point deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return std::max<int64_t>(left, 0);
}

// Ends transfers that are past their deadline where nothing else can, because their threads wait in
// the kernel.
class DeadlineWatcher {
 public:
  // Ends what is overdue at `now` and returns the next deadline, max() if there is none. Called on
  // the thread `thread_name`, without locks.
  using Check = std::function<Clock::time_point(Clock::time_point now)>;

  DeadlineWatcher(const char* thread_name, Check check) : check_(std::move(check)) {
    thread_ = StartThread(thread_name, [this] { Loop(); });
  }
  ~DeadlineWatcher() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      changed_.notify_one();
    }
    thread_.join();
  }

  // There is something new with this deadline. [any-thread]
  void Watch(Clock::time_point deadline) noexcept {
    const std::lock_guard lock(mutex_);
    if (deadline >= next_) return;
    next_ = deadline;
    changed_.notify_one();
  }

 private:
  void Loop() noexcept {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (Clock::now() < next_) {
        changed_.wait_until(lock, Clock::time_point(next_));  // a copy: Watch changes next_
        continue;
      }
      // Deadlines that are set while the lock is free lower next_ again.
      next_ = Clock::time_point::max();
      lock.unlock();
      const Clock::time_point next = check_(Clock::now());
      lock.lock();
      next_ = std::min(next_, next);
    }
  }

  const Check check_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point next_ = Clock::time_point::max();  // these two guarded by mutex_
  bool stop_ = false;
  std::thread thread_;  // last, so that it starts when the rest is there
};

}  // namespace engine::kit
