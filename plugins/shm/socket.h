// Messages with descriptors between processes of one host, over sockets of the abstract namespace,
// which leave no file. The connection of a process that dies hangs up.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "engine/status.h"
#include "kit/deadline.h"
#include "kit/unique_fd.h"

namespace engine::shm {

class Socket {
 public:
  Socket() noexcept = default;
  explicit Socket(kit::UniqueFd descriptor) noexcept : descriptor_(std::move(descriptor)) {}

  // `name` without the leading zero byte; at most 100 bytes. kResourceExhausted, kRendezvous.
  static Result<Socket> Listen(const std::string& name) noexcept;
  static Result<Socket> Connect(const std::string& name) noexcept;
  // The next connection by a process of the same user; others are closed. kTimeout.
  Result<Socket> Accept(kit::Clock::time_point deadline) noexcept;

  // One message, never blocks; `attached` travels along unless it is -1.
  bool Send(const void* data, size_t size, int attached) const noexcept;

  enum class Outcome { kGot, kNothing, kBroken };
  // A message of exactly `size` bytes if one is there; *attached has what travelled along, or
  // nothing. kBroken: the peer is gone or sent something else.
  Outcome Receive(void* data, size_t size, kit::UniqueFd* attached) const noexcept;
  // As above, but waits.
  Status ReceiveBy(kit::Clock::time_point deadline, void* data, size_t size,
                   kit::UniqueFd* attached) const noexcept;

  // Whether the other end is closed. Never blocks.
  bool HungUp() const noexcept;

 private:
  bool Readable(kit::Clock::time_point deadline) const noexcept;

  kit::UniqueFd descriptor_;
};

}  // namespace engine::shm
