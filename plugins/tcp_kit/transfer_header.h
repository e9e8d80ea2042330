// The first thing that a rank sends to a peer in each transfer. Both ends run the same transfers in
// the same order, so nothing else says what comes: the header proves that they agree.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/status.h"
#include "kit/describe.h"

namespace engine::tcp {

// Fields in host order: all ranks run on machines of one byte order.
struct TransferHeader {
  kit::TransferId id;
  uint32_t magic = 0x33706374;  // of this format
  uint32_t bucket = 0;          // for messages
};
static_assert(sizeof(TransferHeader) == 40);

inline TransferHeader HeaderOf(const Transfer& transfer) noexcept {
  return {.id = kit::IdOf(transfer), .bucket = transfer.bucket};
}

// kInvalidArgument when `peer` is in another transfer.
inline Status CheckHeader(const TransferHeader& own, const TransferHeader& theirs,
                          int32_t peer) noexcept {
  if (theirs.magic != own.magic) {
    return Status::Error(StatusCode::kInternal, "rank %d sent something that is no transfer", peer)
        .WithRank(peer);
  }
  if (kit::Agree(theirs.id, own.id)) return {};
  return kit::Disagreement(own.id, theirs.id, peer, theirs.bucket);
}

// `error` is an errno.
inline Status LostConnection(int32_t peer, int error) noexcept {
  return Status::Error(StatusCode::kPeerLost, "lost connection to rank %d (%s)", peer,
                       std::strerror(error))
      .WithRank(peer);
}

}  // namespace engine::tcp
