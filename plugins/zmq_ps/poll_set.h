// Waiting for ZeroMQ sockets without touching them: only who may use a socket may look at it, but
// any thread may wait until there is something to look at.
#pragma once

#include <poll.h>

#include <vector>
#include <zmq.hpp>

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
  // Whether the last wait saw something at the descriptor that was added as number `index`.
  bool Saw(size_t index) const noexcept { return items_[index].revents != 0; }

 private:
  std::vector<pollfd> items_;
};

}  // namespace engine::zmq_ps
