// Wakes a thread that polls.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>

namespace engine::zmq_ps {

class WakeUp {
 public:
  WakeUp() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~WakeUp() { close(descriptor_); }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  int descriptor() const noexcept { return descriptor_; }  // readable while there is a signal

  void Signal() noexcept {  // [any-thread]
    if (pending_.exchange(true)) return;
    const uint64_t one = 1;
    const ssize_t written = write(descriptor_, &one, sizeof(one));
    (void)written;  // a counter that is full wakes as well
  }
  // Before a look at what the signals are about: a signal that comes during Clear may be swallowed.
  void Clear() noexcept {
    if (!pending_.load()) return;
    uint64_t count = 0;
    const ssize_t got = read(descriptor_, &count, sizeof(count));
    (void)got;
    pending_.store(false);
  }

 private:
  const int descriptor_;
  std::atomic<bool> pending_{false};
};

}  // namespace engine::zmq_ps
