// What lies in the segment of a rank. Every other rank of the run maps it.
//
//   segment := control (kControlBytes) stage*kSlots       a stage has chunk_bytes
//
// Ranks go through *rounds*, numbered alike on all of them: the same transfers in the same order
// make the same rounds. In a round a rank may put bytes into its stage number round % kSlots, then
// it publishes the round in the slot of that number, and all others may read. The first round of a
// transfer is its opening: the slot says what the rank is about to do, and no rank goes on before
// it has seen that all others are about to do the same.
//
// Invariants:
//  1. A slot, its stage, `state` and the cause are written by their owner only, the cause once.
//  2. A rank publishes round r + 1 before it has read the stages of round r at the earliest, and
//     round r + 2 after that. So who sees round r of a peer knows that the peer has read all stages
//     up to r - kReadBehind, and its own stage of round r - 2 may be written again as round r + 2.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/status.h"
#include "kit/describe.h"

namespace engine::shm {

constexpr uint32_t kSlots = 4;
constexpr uint32_t kReadBehind = 2;
constexpr size_t kControlBytes = 4096;
constexpr size_t kInlineBytes = 24;

// Two lines are fetched at once by the usual prefetcher.
constexpr size_t kLinePair = 128;

// Where a buffer lies that others may use in place.
struct ArenaPlaces {
  uint32_t send_arena;  // 0: not in an arena
  uint32_t recv_arena;
  uint64_t send_offset;
  uint64_t recv_offset;
};

// What a rank is about to do. The id must be the same on all ranks.
struct Opening {
  kit::TransferId
      id;  // `own` is 1: `places` says where the buffers are; 0: bytes are staged or inlined
  union {
    uint8_t inlined[kInlineBytes];  // the contribution, when it fits: one line is all that moves
    ArenaPlaces places;
  };
};

struct alignas(64) Slot {
  std::atomic<uint32_t> round;  // published with release; the word that others sleep on
  Opening opening;              // of an opening round
};

enum class RankState : uint32_t { kHere = 0, kLeft = 1, kGaveUp = 2 };

struct Control {
  alignas(kLinePair) Slot slots[kSlots];

  alignas(
      kLinePair) std::atomic<uint32_t> sleepers;  // peers that sleep, or are about to, on a slot

  // The owner's worker sleeps on `doorbell`.
  alignas(kLinePair) std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> worker_sleeps;
  std::atomic<uint32_t> unattended;  // 1: a transfer is pending and no thread of the owner runs it

  alignas(kLinePair) std::atomic<uint32_t> state;  // a RankState; publishes the three below
  int32_t cause_code;                              // why the rank gave up
  int32_t cause_rank;
  char cause[512];
};
static_assert(sizeof(Slot) == 64 && sizeof(Control) <= kControlBytes);

// The end of `own`: what its owner found out, or that its user has aborted. Once; wakes who waits
// for it.
void TellEnd(Control& own, const Status& reason, bool by_caller) noexcept;

// What `peer` says about its end: kPeerLost if it left, the cause it found if it gave up, which is
// not to be blamed on the messenger; OK while it is here.
Status EndOf(const Control& peer, int rank) noexcept;

// Rounds wrap around.
inline bool Reached(uint32_t seen, uint32_t round) noexcept {
  return static_cast<int32_t>(seen - round) >= 0;
}

}  // namespace engine::shm
