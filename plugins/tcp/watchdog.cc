#include "watchdog.h"

#include <pthread.h>
#include <signal.h>

#include <utility>

namespace engine::tcp {

Watchdog::Watchdog(Check check) : check_(std::move(check)) {
  thread_ = std::thread([this] { Loop(); });
  pthread_setname_np(thread_.native_handle(), "tcp_deadline");
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  thread_.join();
}

void Watchdog::Watch(Clock::time_point deadline) noexcept {
  const std::lock_guard lock(mutex_);
  if (deadline >= next_) return;
  next_ = deadline;
  changed_.notify_one();
}

void Watchdog::Loop() noexcept {
  sigset_t all;  // signals are for the threads of the host
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (next_ == Clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, Clock::time_point(next_));  // a copy: Watch changes next_
    }
    if (stop_ || Clock::now() < next_) continue;
    // Deadlines that are set while the lock is free lower next_ again.
    next_ = Clock::time_point::max();
    lock.unlock();
    const Clock::time_point next = check_(Clock::now());
    lock.lock();
    next_ = std::min(next_, next);
  }
}

}  // namespace engine::tcp
