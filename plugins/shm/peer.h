// Another rank: its segment, its arenas, and the connection that tells whether it lives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "control.h"
#include "segment.h"
#include "socket.h"

namespace engine::shm {

// Sent on the connection when an arena comes (with its descriptor) or goes (size 0).
struct ArenaNotice {
  uint32_t arena = 0;  // from 1; numbers are not used again
  uint32_t reserved = 0;
  uint64_t size_bytes = 0;
};

class Peer {
 public:
  Peer(int rank, Socket connection, std::unique_ptr<Segment> segment, size_t chunk_bytes);

  int rank() const noexcept { return rank_; }
  Control& control() const noexcept { return control_; }
  // What the peer staged in `round`.
  const uint8_t* stage(uint32_t round) const noexcept {
    return stages_ + (round % kSlots) * chunk_bytes_;
  }
  // The process or the communicator at the other end is gone. [any-thread]
  bool gone() const noexcept { return connection_.HungUp(); }

  // Whether the peer could be told. [any-thread]
  bool Notify(const ArenaNotice& notice, int descriptor) const noexcept {
    return connection_.Send(&notice, sizeof(notice), descriptor);
  }

  // `size_bytes` from `offset` of one of the peer's arenas, mapped here; it stays until the peer
  // frees it. kPeerLost, kResourceExhausted; kInternal when the place is not inside of an arena.
  // [any-thread]
  Result<uint8_t*> Place(uint32_t arena, uint64_t offset, uint64_t size_bytes) noexcept;

 private:
  Status ReadNotices() noexcept;

  const int rank_;
  const Socket connection_;
  const std::unique_ptr<Segment> segment_;
  Control& control_;
  const uint8_t* const stages_;
  const size_t chunk_bytes_;

  std::mutex mutex_;
  std::map<uint32_t, std::unique_ptr<Segment>> arenas_;  // guarded by mutex_
};

}  // namespace engine::shm
