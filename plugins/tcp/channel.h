// The messages of wire.h between this rank and all peers, on one lane.
//
// A transfer is a series of steps, the same on all ranks, and a rank stands at the step whose parts
// it awaits. Each step has at most one part for each peer. A rank that stands at step k has sent,
// or is sending, the parts of step k and perhaps of k + 1, in this order: at most kWindowBytes for
// one peer. Steps of the next transfer come after all of this one.
//
// So no rank waits forever. Take a rank r that stands no later than any other.
// - It does not block in a write. Who it sends to stands at the same step or later and has received
//   all earlier parts, so at most kWindowBytes are between the two; they fit into the send buffer.
// - It does not wait for a part in vain. Who it receives from, p, stands at the same step or later.
//   If at the same one, p is as late as r, does not block either, and sends the part before it
//   waits. If later, p has sent it: to stand later, p has finished writing this step.
// - It does not wait for a connection in vain: see connections.h.
//
// With step k + 1 in the socket while step k is awaited, the link does not idle for the time
// between the last byte of a part and the reaction to it.
//
// The calling thread reads and writes the sockets itself, which saves the two wake-ups of a message
// that passes through another thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "connections.h"
#include "engine/status.h"
#include "kit/work.h"
#include "wire.h"

namespace engine::tcp {

class Channel {
 public:
  // `connections` outlives the channel.
  Channel(Connections& connections, int lane);

  int rank() const noexcept { return connections_.ranks().rank; }
  int world_size() const noexcept { return connections_.ranks().world_size; }

  // Starts a transfer: the next message to and from each peer has its header. `work`, which lives
  // until the next Open, is told when the first byte leaves. [one thread at a time]
  void Open(kit::PooledWork& work) noexcept;

  // One part of the open transfer; after the header an empty part is no message at all. Errors:
  // kPeerLost, or kInvalidArgument when the peer is in another transfer, each with the peer's rank.
  Status Send(int peer, const void* data, size_t size_bytes) noexcept;
  Status Receive(int peer, void* data, size_t size_bytes) noexcept;

  // Room for a part, aligned for vectors: for what is not received where it belongs.
  std::byte* inbox() noexcept { return inbox_->bytes; }

  // The peer that the running transfer waits for, or -1. [any-thread]
  int waiting_for() const noexcept { return waiting_for_.load(std::memory_order_relaxed); }

 private:
  struct Link {
    int socket = -1;  // of the connections
    bool sent_header = false;
    bool received_header = false;
  };
  struct Inbox {
    alignas(64) std::byte bytes[kPartBytes];
  };

  // The link to `peer`, connected.
  Status Use(int peer, Link** link) noexcept;
  Status CheckHeader(int peer, const TransferHeader& theirs) const noexcept;

  Connections& connections_;
  const int lane_;
  const std::unique_ptr<Inbox> inbox_;
  std::vector<Link> links_;  // by peer; this rank's own is not used
  TransferHeader header_;
  kit::PooledWork* work_ = nullptr;   // the open transfer
  std::atomic<int> waiting_for_{-1};  // publishes nothing
};

}  // namespace engine::tcp
