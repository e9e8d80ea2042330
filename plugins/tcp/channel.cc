#include "channel.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>

#include <cstring>
#include <exception>
#include <string_view>

#include "clock.h"
#include "describe.h"

namespace engine::tcp {
namespace {

// Slots tell gloo's buffers on one pair apart; there is one.
constexpr int kSlot = 0;

// Gloo's own text without "[file:line] " in front.
std::string_view Reason(const std::exception& error) {
  const std::string_view text = error.what();
  const size_t end = text.starts_with('[') ? text.find("] ") : std::string_view::npos;
  return end == std::string_view::npos ? text : text.substr(end + 2);
}

Status Lost(int peer, const std::exception& error) noexcept {
  const std::string_view reason = Reason(error);
  return Status::Error(StatusCode::kPeerLost, "lost connection to rank %d (%.*s)", peer,
                       static_cast<int>(reason.size()), reason.data())
      .WithRank(peer);
}

}  // namespace

// A message is received where its sender says, relative to this struct: an opening from `header`
// on, a part from `payload` on. So a payload is always at the same, aligned place.
struct Channel::Staging {
  struct Inbox {
    std::byte unused[64 - sizeof(TransferHeader)];
    TransferHeader header;
    std::byte payload[kPartBytes];
  };
  struct Outbox {
    TransferHeader header;
    std::byte payload[kInlineBytes];
  };
  static_assert(offsetof(Inbox, payload) == 64);

  alignas(64) Inbox inbox;
  alignas(64) Outbox outbox;
};

Channel::Channel(int rank, int world_size)
    : rank_(rank), staging_(std::make_unique<Staging>()), links_(static_cast<size_t>(world_size)) {}

Channel::~Channel() = default;

Status Channel::Attach(int peer, ::gloo::transport::Pair& pair,
                       const std::vector<char>& peer_address,
                       const CongestionControl& congestion_control) {
  Link& link = links_[static_cast<size_t>(peer)];
  ENGINE_ASSIGN_OR_RETURN(link.socket, SocketHandle::Of(pair, peer_address));
  link.socket.RemoveTimeouts();
  if (!congestion_control.name.empty()) {
    const Status set = link.socket.SetCongestionControl(congestion_control.name);
    if (!set.ok() && congestion_control.required) return set;
  }
  if (!link.socket.ReserveSendBuffer(kWindowBytes)) {
    return Status::Error(StatusCode::kConfig,
                         "the kernel limits the send buffer of a socket: raise net.core.wmem_max "
                         "to at least %zu",
                         kWindowBytes);
  }
  pair.setSync(true, false);
  // A send buffer over all memory: an offset into it is an address, so anything can be sent from
  // where it is, without a buffer object for it. One inbox serves all peers, because a message is
  // read from its socket only by a Receive for that peer.
  link.out = pair.createSendBuffer(kSlot, nullptr, SIZE_MAX);
  link.in = pair.createRecvBuffer(kSlot, &staging_->inbox, sizeof(staging_->inbox));
  return {};
}

void Channel::Open(const Transfer& transfer, std::atomic<int64_t>& started_ns) noexcept {
  header_ = HeaderOf(transfer);
  started_ns_ = &started_ns;
  for (Link& link : links_) link.sent_opening = link.received_opening = false;
}

void Channel::SendMessage(Link& link, const void* data, size_t size_bytes, size_t target_offset) {
  link.out->send(reinterpret_cast<uintptr_t>(data), size_bytes, target_offset);
  if (size_bytes > link.largest_sent) {
    // Gloo has made the buffer as small as this message, as for each that is larger than all
    // before. The argument of channel.h holds in this write too: the largest part between two ranks
    // is the first, so the window holds nothing else.
    link.largest_sent = size_bytes;
    link.socket.ReserveSendBuffer(kWindowBytes);
  }
  link.out->waitSend();  // in synchronous mode only counts
}

Status Channel::Send(int peer, const void* data, size_t size_bytes) noexcept {
  Link& link = links_[static_cast<size_t>(peer)];
  waiting_for_.store(peer, std::memory_order_relaxed);
  try {
    if (!link.sent_opening) {
      link.sent_opening = true;
      if (started_ns_->load(std::memory_order_relaxed) == 0) {
        started_ns_->store(MonotonicNs(), std::memory_order_relaxed);
      }
      Staging::Outbox& outbox = staging_->outbox;
      outbox.header = header_;
      const size_t inlined = size_bytes <= kInlineBytes ? size_bytes : 0;
      if (inlined > 0) std::memcpy(outbox.payload, data, inlined);
      SendMessage(link, &outbox, sizeof(outbox.header) + inlined, offsetof(Staging::Inbox, header));
      size_bytes -= inlined;
    }
    if (size_bytes > 0) SendMessage(link, data, size_bytes, offsetof(Staging::Inbox, payload));
  } catch (const std::exception& error) {
    return Lost(peer, error);
  }
  waiting_for_.store(-1, std::memory_order_relaxed);
  return {};
}

Status Channel::Receive(int peer, size_t size_bytes) noexcept {
  Link& link = links_[static_cast<size_t>(peer)];
  waiting_for_.store(peer, std::memory_order_relaxed);
  try {
    if (!link.received_opening) {
      link.received_opening = true;
      link.in->waitRecv();
      ENGINE_RETURN_IF_ERROR(CheckOpening(peer));
      if (size_bytes <= kInlineBytes) size_bytes = 0;
    }
    if (size_bytes > 0) link.in->waitRecv();
  } catch (const std::exception& error) {
    return Lost(peer, error);
  }
  waiting_for_.store(-1, std::memory_order_relaxed);
  return {};
}

Status Channel::CheckOpening(int peer) const noexcept {
  const TransferHeader& theirs = staging_->inbox.header;
  TransferHeader expected = header_;
  expected.unit = theirs.unit;  // says nothing of its own
  if (theirs == expected) return {};
  const Text words = Describe(theirs), own_words = Describe(header_);
  const bool same_in_words = std::strcmp(words.c_str(), own_words.c_str()) == 0;
  return Status::Error(
             StatusCode::kInvalidArgument,
             "rank %d submitted %s where this rank submitted %s%s: all ranks must submit the same "
             "transfers in the same order",
             peer, words.c_str(), own_words.c_str(),
             same_in_words ? HiddenDifference(theirs, header_).c_str() : "")
      .WithRank(peer);
}

const std::byte* Channel::inbox() const noexcept {
  return staging_->inbox.payload;
}

void Channel::Shutdown() noexcept {
  for (const Link& link : links_) link.socket.Shutdown();
}

}  // namespace engine::tcp
