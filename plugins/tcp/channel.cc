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
// - It does not wait for a connection in vain: see connections.cc.
//
// With step k + 1 in the socket while step k is awaited, the link does not idle for the time
// between the last byte of a part and the reaction to it.
//
// The calling thread reads and writes the sockets itself, which saves the two wake-ups of a message
// that passes through another thread.
#include "channel.h"

#include "tcp_kit/socket.h"

namespace engine::tcp {

Channel::Channel(Connections& connections, int lane, kit::Progress& progress)
    : connections_(connections),
      lane_(lane),
      progress_(progress),
      inbox_(std::make_unique<Inbox>()),
      links_(static_cast<size_t>(connections.ranks().world_size)) {}

void Channel::Open(kit::PooledWork& work) noexcept {
  header_ = HeaderOf(work.transfer());
  work_ = &work;
  for (Link& link : links_) link.sent_header = link.received_header = false;
}

// waiting_for_ stays set when a call fails: the deadline's message names that peer.
Status Channel::Use(int peer, Link** link) noexcept {
  *link = &links_[static_cast<size_t>(peer)];
  waiting_for_.store(peer, std::memory_order_relaxed);
  if ((*link)->socket >= 0) return {};
  ENGINE_ASSIGN_OR_RETURN((*link)->socket, connections_.Get(lane_, peer));
  return {};
}

Status Channel::Send(int peer, const void* data, size_t size_bytes) noexcept {
  Link* link = nullptr;
  ENGINE_RETURN_IF_ERROR(Use(peer, &link));
  iovec pieces[] = {{&header_, 0}, {const_cast<void*>(data), size_bytes}};
  if (!link->sent_header) {
    link->sent_header = true;
    pieces[0].iov_len = sizeof(header_);
    work_->MarkStarted();
  }
  if (const int error = tcp::Send(link->socket, pieces)) return LostConnection(peer, error);
  progress_.Moved(size_bytes);
  waiting_for_.store(-1, std::memory_order_relaxed);
  return {};
}

Status Channel::Receive(int peer, void* data, size_t size_bytes) noexcept {
  Link* link = nullptr;
  ENGINE_RETURN_IF_ERROR(Use(peer, &link));
  TransferHeader theirs;
  iovec pieces[] = {{&theirs, 0}, {data, size_bytes}};
  if (!link->received_header) {
    link->received_header = true;
    pieces[0].iov_len = sizeof(theirs);
    // No more than the header is sure to come: of another transfer less may follow.
    if (const int error = tcp::Receive(link->socket, pieces, sizeof(theirs))) {
      return LostConnection(peer, error);
    }
    ENGINE_RETURN_IF_ERROR(CheckHeader(header_, theirs, peer));
  }
  if (const int error = tcp::Receive(link->socket, {&pieces[1], 1}, pieces[1].iov_len)) {
    return LostConnection(peer, error);
  }
  progress_.Moved(size_bytes);
  waiting_for_.store(-1, std::memory_order_relaxed);
  return {};
}

}  // namespace engine::tcp
