// What travels on one connection of one lane. Both ends run the same transfers in the same order,
// so no length is sent: the header proves that they agree, and every length follows from it.
//
//   connection := transfer*
//   transfer   := opening part*      to each peer that the transfer concerns
//   opening    := header payload     the first part (perhaps empty) if it has <= kInlineBytes
//               | header             else; the first part follows as a message of its own
//   part       := payload            1 .. kPartBytes bytes
//
// Each `opening` and `part` is one message of gloo, which puts 48 bytes of its own in front.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/communicator.h"

namespace engine::tcp {

// Below this a copy costs less than a second system call.
constexpr size_t kInlineBytes = 16 << 10;

// What a rank has sent to a peer and not heard of, at most. Small enough that it always fits into a
// socket's send buffer under the usual limit of Linux (net.core.wmem_max = 212992), which is why no
// write can block for good (see channel.h), and that little lies below the scheduler; large enough
// that system calls do not count. All of it stays in a core's second-level cache.
constexpr size_t kWindowBytes = 192 << 10;

// Two make a window: one is awaited while the other is on its way.
constexpr size_t kPartBytes = kWindowBytes / 2;

// Fields in host order: all ranks run on machines of one byte order.
struct TransferHeader {
  uint64_t magic = 0x32656e696c6f6c67;  // of this format
  uint64_t sequence = 0;
  int64_t count = 0;
  uint64_t key = 0;
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  uint8_t reserved = 0;
  int32_t root = 0;
  uint32_t unit = 0;  // for messages
  uint32_t reserved2 = 0;

  bool operator==(const TransferHeader&) const = default;
};
static_assert(sizeof(TransferHeader) == 48);

inline TransferHeader HeaderOf(const Transfer& transfer) noexcept {
  return {.sequence = transfer.sequence,
          .count = transfer.count,
          .key = transfer.key,
          .kind = static_cast<uint8_t>(transfer.kind),
          .dtype = static_cast<uint8_t>(transfer.dtype),
          .reduction = static_cast<uint8_t>(transfer.reduction),
          .root = transfer.root,
          .unit = transfer.unit};
}

}  // namespace engine::tcp
