// Ends transfers that are past their deadline: nothing else can, because their threads wait in the
// kernel.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "clock.h"

namespace engine::tcp {

class Watchdog {
 public:
  // Ends what is overdue at `now` and returns the next deadline. Called on the thread
  // tcp_deadline.
  using Check = std::function<Clock::time_point(Clock::time_point now)>;

  explicit Watchdog(Check check);
  ~Watchdog();

  // There is something new with this deadline. [any-thread]
  void Watch(Clock::time_point deadline) noexcept;

 private:
  void Loop() noexcept;

  const Check check_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point next_ = Clock::time_point::max();  // these two guarded by mutex_
  bool stop_ = false;

  std::thread thread_;
};

}  // namespace engine::tcp
