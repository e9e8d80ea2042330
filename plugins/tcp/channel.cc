#include "channel.h"

#include <cstring>

#include "kit/describe.h"
#include "socket.h"

namespace engine::tcp {
namespace {

Status Lost(int peer, int error) noexcept {
  return Status::Error(StatusCode::kPeerLost, "lost connection to rank %d (%s)", peer,
                       std::strerror(error))
      .WithRank(peer);
}

}  // namespace

Channel::Channel(Connections& connections, int lane)
    : connections_(connections),
      lane_(lane),
      inbox_(std::make_unique<Inbox>()),
      links_(static_cast<size_t>(connections.ranks().world_size)) {}

void Channel::Open(kit::PooledWork& work) noexcept {
  header_.id = kit::IdOf(work.transfer());
  header_.unit = work.transfer().unit;
  work_ = &work;
  for (Link& link : links_) link.sent_header = link.received_header = false;
}

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
  if (const int error = tcp::Send(link->socket, pieces)) return Lost(peer, error);
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
      return Lost(peer, error);
    }
    ENGINE_RETURN_IF_ERROR(CheckHeader(peer, theirs));
  }
  if (const int error = tcp::Receive(link->socket, {&pieces[1], 1}, pieces[1].iov_len)) {
    return Lost(peer, error);
  }
  waiting_for_.store(-1, std::memory_order_relaxed);
  return {};
}

Status Channel::CheckHeader(int peer, const TransferHeader& theirs) const noexcept {
  if (theirs.magic != header_.magic) {
    return Status::Error(StatusCode::kInternal, "rank %d sent something that is no transfer", peer)
        .WithRank(peer);
  }
  if (kit::Agree(theirs.id, header_.id)) return {};
  return kit::Disagreement(header_.id, theirs.id, peer, theirs.unit);
}

}  // namespace engine::tcp
