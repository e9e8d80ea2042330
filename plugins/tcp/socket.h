// The sockets below gloo's pairs. Gloo can neither wake a thread that waits on a pair nor change a
// pair's timeout; both are properties of the socket, which can be had by its address.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/status.h"

namespace gloo::transport {
class Pair;
}

namespace engine::tcp {

// A descriptor of its own for a connection that a pair uses.
class SocketHandle {
 public:
  SocketHandle() noexcept = default;
  explicit SocketHandle(int fd) noexcept : fd_(fd) {}
  SocketHandle(SocketHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  SocketHandle& operator=(SocketHandle&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~SocketHandle();

  // The socket of a connected pair, whose peer published `peer_address` for it.
  static Result<SocketHandle> Of(const ::gloo::transport::Pair& pair,
                                 const std::vector<char>& peer_address);

  // Reads and writes wait without limit: deadlines are the Watchdog's.
  void RemoveTimeouts() const noexcept;

  // Kernel's name of an algorithm. kConfig when this process may not use it.
  Status SetCongestionControl(const std::string& name) const noexcept;

  // Whether the kernel grants a send buffer that takes `bytes` at once.
  bool ReserveSendBuffer(int bytes) const noexcept;

  // Ends both directions; threads that wait on the connection return with an error. [any-thread]
  void Shutdown() const noexcept;

 private:
  int fd_ = -1;
};

// Broken connections raise SIGPIPE in gloo's writes. While this lives the calling thread does not
// get it, and none is left behind.
class ScopedIgnoreSigpipe {
 public:
  ScopedIgnoreSigpipe() noexcept;
  ~ScopedIgnoreSigpipe();
  ScopedIgnoreSigpipe(const ScopedIgnoreSigpipe&) = delete;
  ScopedIgnoreSigpipe& operator=(const ScopedIgnoreSigpipe&) = delete;

 private:
  bool was_blocked_ = false;
};

}  // namespace engine::tcp
