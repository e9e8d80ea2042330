// What travels on one connection of one lane after the handshake. Both ends run the same transfers
// in the same order, so no length is sent: the header proves that they agree, and every length
// follows from it.
//
//   transfer := header part*     (tcp_kit/transfer_header.h) to each peer that the transfer concerns; one write has the header
//   part     := payload          and the first part; 0 .. kPartBytes bytes each
#pragma once

#include <cstddef>

namespace engine::tcp {

// What a rank has sent to a peer and not heard of, at most. Small enough that it always fits into a
// socket's send buffer under the usual limit of Linux (net.core.wmem_max = 212992), which is why no
// write can block for good (see channel.h), and that little lies below the scheduler; large enough
// that system calls do not count. All of it stays in a core's second-level cache.
constexpr size_t kWindowBytes = 192 << 10;

// Two make a window: one is awaited while the other is on its way.
constexpr size_t kPartBytes = kWindowBytes / 2;

}  // namespace engine::tcp
