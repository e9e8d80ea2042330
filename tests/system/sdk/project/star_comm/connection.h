// A TCP connection whose every wait has a deadline.
#pragma once

#include <netinet/in.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/status.h"

namespace star_comm {

using Deadline = std::chrono::steady_clock::time_point;

inline Deadline After(int64_t timeout_ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
}

// Owns a file descriptor.
class Socket {
 public:
  Socket() noexcept = default;
  explicit Socket(int fd) noexcept : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const noexcept { return fd_; }

 private:
  int fd_ = -1;
};

class Connection {
 public:
  Connection() noexcept = default;
  explicit Connection(Socket socket) noexcept;

  bool is_open() const noexcept { return socket_.fd() >= 0; }
  // The rank at the other end, for messages; -1 as long as it is unknown.
  void set_peer(int32_t peer) noexcept { peer_ = peer; }

  engine::Status Send(const void* data, size_t size_bytes, Deadline deadline) noexcept;
  engine::Status Receive(void* data, size_t size_bytes, Deadline deadline) noexcept;
  // Ends the waits of other threads on this connection. [any-thread]
  void Shutdown() noexcept;

 private:
  Socket socket_;
  int32_t peer_ = -1;
};

// Listens at `address` (numeric IPv4) on a free port, which it writes to *bound.
engine::Result<Socket> Listen(const char* address, sockaddr_in* bound) noexcept;
// kTimeout when nobody connects by then.
engine::Result<Socket> Accept(const Socket& listener, Deadline deadline) noexcept;
engine::Result<Socket> Connect(const sockaddr_in& address) noexcept;

}  // namespace star_comm
