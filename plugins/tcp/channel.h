// The connections of one lane to all peers, and the messages of wire.h on them.
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
//
// With step k + 1 in the socket while step k is awaited, the link does not idle for the time
// between the last byte of a part and the reaction to it.
//
// Gloo's pairs run in synchronous mode: the calling thread reads and writes the socket itself. That
// saves two wake-ups per message over gloo's event loop, and what a peer sends early waits in the
// kernel instead of keeping that loop spinning. README.md of this folder has the
// measurements.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/status.h"
#include "socket.h"
#include "wire.h"

namespace gloo::transport {
class Buffer;
class Pair;
}  // namespace gloo::transport

namespace engine::tcp {

struct CongestionControl {
  std::string name;  // the kernel's; empty: the host's choice stays
  bool required = false;
};

class Channel {
 public:
  Channel(int rank, int world_size);
  ~Channel();

  // Takes a connected pair, which must outlive the channel, and the address that the peer published
  // for it.
  // kConfig when the kernel does not allow what this needs. [setup]
  Status Attach(int peer, ::gloo::transport::Pair& pair, const std::vector<char>& peer_address,
                const CongestionControl& congestion_control);

  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return static_cast<int>(links_.size()); }

  // Starts a transfer: the next message to and from each peer is its opening. The time of the first
  // message sent goes into `started_ns`, which is 0 before and lives until the next Open. [one
  // thread at a time]
  void Open(const Transfer& transfer, std::atomic<int64_t>& started_ns) noexcept;

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
    size_t largest_sent = 0;
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
  std::atomic<int64_t>* started_ns_ = nullptr;  // of the open transfer
  std::atomic<int> waiting_for_{-1};
};

}  // namespace engine::tcp
