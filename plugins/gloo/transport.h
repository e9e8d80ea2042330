// What Gloo's collectives move bytes with: a transport of this plugin's own, over connections whose
// peers have proved who they are (tcp_kit/handshake.h). Of the library only algorithms run; no code
// of it reads from a socket.
//
//   transfer := header message*     to each peer that the transfer concerns; see transfer_header.h
//   message  := payload             its length follows from the algorithm
//
// A pair of ranks sends and receives its messages of a transfer in one order in all of Gloo's
// algorithms, so a message is received by the oldest receive from that peer, and slots, by which
// Gloo's own transports match them, are not needed.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/uio.h>

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "kit/progress.h"
#include "kit/work.h"
#include "tcp_kit/connections.h"
#include "tcp_kit/transfer_header.h"

namespace engine::gloo {

// Leaves Gloo's collectives: what ended a transfer.
class TransferError final : public std::exception {
 public:
  explicit TransferError(Status status) : status_(std::move(status)) {}
  const Status& status() const noexcept { return status_; }
  const char* what() const noexcept override { return status_.message(); }

 private:
  const Status status_;
};

class Buffer;

// One lane. Bytes move while a thread waits for a buffer, and as far as the kernel takes them at
// once when they are sent: a transfer has one thread. After an error there is no other transfer.
class Transport final : public ::gloo::transport::Context {
 public:
  // Both outlive it.
  Transport(tcp::Connections& connections, int lane, kit::Progress& progress);

  // Starts a transfer: the next message to and from each peer has its header.
  void Open(kit::PooledWork& work) noexcept;
  // The peer that the running transfer waits for, or -1. [any-thread]
  int waiting_for() const noexcept { return waiting_for_.load(std::memory_order_relaxed); }

  std::unique_ptr<::gloo::transport::Pair>& createPair(int peer) override { return getPair(peer); }
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                        size_t bytes) override;

 private:
  friend class Buffer;

  // A header and a message, as far as they have not moved.
  struct Message {
    Buffer* buffer;
    iovec pieces[2];
    const tcp::TransferHeader* unchecked = nullptr;  // a header that is received with it
  };
  struct Link {
    int socket = -1;  // of the connections
    tcp::TransferHeader theirs;
    bool sends_header = false, receives_header = false;  // with the next message
    std::deque<Message> sends, receives;                 // the oldest first
  };

  // These throw TransferError.
  Link& Use(int peer);
  void Send(int peer, Buffer* buffer, void* data, size_t bytes);
  void Receive(int peer, Buffer* buffer, void* data, size_t bytes);
  void Move();  // something, and waits until that is possible
  template <typename Call>
  bool MoveMessages(int peer, std::deque<Message>& messages, int Buffer::*ended, const Call& call);
  void AwaitSockets();

  tcp::Connections& connections_;
  const int lane_;
  kit::Progress& progress_;
  std::vector<Link> links_;  // by peer; this rank's own is not used
  tcp::TransferHeader header_;
  kit::PooledWork* work_ = nullptr;   // the open transfer
  std::atomic<int> waiting_for_{-1};  // publishes nothing
};

// Gloo's collectives ask it for buffers of `transport`.
class Context final : public ::gloo::Context {
 public:
  Context(const RankInfo& ranks, std::shared_ptr<Transport> transport)
      : ::gloo::Context(ranks.rank, ranks.world_size) {
    transportContext_ = std::move(transport);
  }
};

}  // namespace engine::gloo
