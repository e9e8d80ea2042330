// Waiting for ZeroMQ sockets without touching them: only who may use a socket may look at it, but
// any thread may wait until there is something to look at, and any may wake it.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <vector>
#include <zmq.hpp>

#include "kit/unique_fd.h"

namespace engine::zmq_ps {

// Of a socket: ZMQ_POLLIN | ZMQ_POLLOUT. To be asked after each use and before each wait, since its
// descriptor tells of changes only that nobody has looked at. For who may use the socket.
inline int EventsOf(void* socket) noexcept {
  int events = 0;
  size_t size = sizeof(events);
  (void)zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size);
  return events;
}

// Descriptors that one thread waits for at a time.
class PollSet {
 public:
  void Add(int descriptor) { items_.push_back({descriptor, POLLIN, 0}); }
  void AddSocket(void* socket) {
    int descriptor = -1;
    size_t size = sizeof(descriptor);
    if (zmq_getsockopt(socket, ZMQ_FD, &descriptor, &size) != 0) throw ::zmq::error_t();
    Add(descriptor);
  }

  // Blocks until something has happened, at most `timeout_ms`.
  void Wait(int timeout_ms) noexcept {
    (void)::poll(items_.data(), static_cast<nfds_t>(items_.size()), timeout_ms);
  }

 private:
  std::vector<pollfd> items_;
};

// Wakes a thread that polls.
class WakeUp {
 public:
  WakeUp() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!descriptor_) throw std::system_error(errno, std::generic_category(), "eventfd");
  }

  int descriptor() const noexcept { return descriptor_.get(); }  // readable while there is a signal

  void Signal() noexcept {  // [any-thread]
    if (pending_.exchange(true)) return;
    const uint64_t one = 1;
    const ssize_t written = write(descriptor_.get(), &one, sizeof(one));
    (void)written;  // a counter that is full wakes as well
  }
  // Before a look at what the signals are about: a signal that comes during Clear may be swallowed.
  void Clear() noexcept {
    if (!pending_.load()) return;
    uint64_t count = 0;
    const ssize_t got = read(descriptor_.get(), &count, sizeof(count));
    (void)got;
    pending_.store(false);
  }

 private:
  const kit::UniqueFd descriptor_;
  std::atomic<bool> pending_{false};
};

}  // namespace engine::zmq_ps
