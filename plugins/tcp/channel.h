// The messages of wire.h between this rank and all peers, on one lane. channel.cc says why no rank
// waits for ever.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "engine/status.h"
#include "kit/progress.h"
#include "kit/work.h"
#include "tcp_kit/connections.h"
#include "tcp_kit/transfer_header.h"
#include "wire.h"

namespace engine::tcp {

class Channel {
 public:
  // `connections` and `progress` outlive the channel.
  Channel(Connections& connections, int lane, kit::Progress& progress);

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

  Connections& connections_;
  const int lane_;
  kit::Progress& progress_;
  const std::unique_ptr<Inbox> inbox_;
  std::vector<Link> links_;  // by peer; this rank's own is not used
  TransferHeader header_;
  kit::PooledWork* work_ = nullptr;   // the open transfer
  std::atomic<int> waiting_for_{-1};  // publishes nothing
};

}  // namespace engine::tcp
