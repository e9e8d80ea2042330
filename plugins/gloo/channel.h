// The connections of one lane to all peers, and the messages of wire.h on them.
//
// A transfer is a series of steps, the same on all ranks; in each step a rank first sends at most
// one part to each peer, then receives what the peers sent to it in that step. So no rank waits
// forever: take a rank that is not ahead of any other. Who it sends to has finished all earlier
// steps, so only this step's message is between the two, and that fits into the send buffer: it
// does not block. Who it receives from is in this step or later; if later, the message was sent; if
// in this one, it is as far behind as the first rank and, by the same argument, not blocked.
//
// Gloo's pairs run in synchronous mode: the calling thread reads and writes the socket itself. That
// saves two wake-ups per message over gloo's event loop, and what a peer sends early waits in the
// kernel instead of keeping that loop spinning. README.md of this folder has the
// measurements.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/status.h"
#include "socket.h"
#include "wire.h"

namespace gloo::transport {
class Buffer;
class Pair;
}  // namespace gloo::transport

namespace engine::gloo {

class Channel {
 public:
  Channel(int rank, int world_size);
  ~Channel();

  // Takes a connected pair, which must outlive the channel, and the address that the peer published
  // for it. [setup]
  Status Attach(int peer, ::gloo::transport::Pair& pair, const std::vector<char>& peer_address);

  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return static_cast<int>(links_.size()); }

  // Starts a transfer: the next message to and from each peer is its opening. [one thread at a
  // time]
  void Open(const Transfer& transfer) noexcept;

  // One part of the open transfer; after the opening an empty part is no message at all. Errors:
  // kPeerLost, or kInvalidArgument when the peer is in another transfer, each with the peer's rank.
  Status Send(int peer, const void* data, size_t size_bytes) noexcept;
  // The part is in inbox() until the next Receive.
  Status Receive(int peer, size_t size_bytes) noexcept;
  const std::byte* inbox() const noexcept;

  // The peer that the running transfer waits for, or -1. [any-thread]
  int waiting_for() const noexcept { return waiting_for_.load(std::memory_order_relaxed); }

  // Makes pending and later calls fail. [any-thread]
  void Shutdown() noexcept;

 private:
  struct Link {
    std::unique_ptr<::gloo::transport::Buffer> out;
    std::unique_ptr<::gloo::transport::Buffer> in;
    SocketHandle socket;
    bool sent_opening = false;
    bool received_opening = false;
  };
  struct Staging;

  void SendMessage(Link& link, const void* data, size_t size_bytes, size_t target_offset);
  Status CheckOpening(int peer) const noexcept;

  const int rank_;
  const std::unique_ptr<Staging> staging_;
  std::vector<Link> links_;  // by peer; this rank's own is empty
  TransferHeader header_;
  std::atomic<int> waiting_for_{-1};
};

}  // namespace engine::gloo
