// Messages with descriptors between processes of one host, over sockets of the abstract namespace,
// which leave no file. The connection of a process that dies hangs up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/status.h"

namespace engine::shm {

// An owned descriptor of a socket; -1: none.
class Socket {
 public:
  Socket() noexcept = default;
  explicit Socket(int descriptor) noexcept : descriptor_(descriptor) {}
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  // `name` without the leading zero byte; at most 100 bytes. kResourceExhausted, kRendezvous.
  static Result<Socket> Listen(const std::string& name) noexcept;
  static Result<Socket> Connect(const std::string& name) noexcept;
  // The next connection by a process of the same user; others are closed. kTimeout.
  Result<Socket> Accept(int64_t deadline_ns) noexcept;

  // One message, never blocks; `attached` travels along unless it is -1.
  bool Send(const void* data, size_t size, int attached) const noexcept;

  enum class Outcome { kGot, kNothing, kBroken };
  // A message of exactly `size` bytes if one is there; *attached is the caller's to close, or -1.
  // kBroken: the peer is gone or sent something else.
  Outcome Receive(void* data, size_t size, int* attached) const noexcept;
  // As above, but waits.
  Status ReceiveBy(int64_t deadline_ns, void* data, size_t size, int* attached) const noexcept;

  // Whether the other end is closed. Never blocks.
  bool HungUp() const noexcept;

 private:
  bool Readable(int64_t deadline_ns) const noexcept;

  int descriptor_ = -1;
};

}  // namespace engine::shm
