#include "control.h"

#include <cstdio>

#include "futex.h"

namespace engine::shm {

void TellEnd(Control& own, const Status& reason, bool by_caller) noexcept {
  if (!by_caller) {
    own.cause_code = static_cast<int32_t>(reason.code());
    own.cause_rank = reason.rank();
    std::snprintf(own.cause, sizeof(own.cause), "%s", reason.message());
  }
  const RankState state = by_caller ? RankState::kLeft : RankState::kGaveUp;
  // Publishes the cause, and every round that was published before, to who sees the state.
  own.state.store(static_cast<uint32_t>(state), std::memory_order_release);
  for (Slot& slot : own.slots) FutexWake(slot.round);
}

Status EndOf(const Control& peer, int rank) noexcept {
  const auto state = static_cast<RankState>(peer.state.load(std::memory_order_acquire));
  if (state == RankState::kHere) return {};
  if (state == RankState::kLeft) {
    return Status::Error(StatusCode::kPeerLost, "rank %d left the run", rank).WithRank(rank);
  }
  // The text is another process's: it may lack an end.
  return Status::Error(static_cast<StatusCode>(peer.cause_code), "rank %d gave up: %.*s", rank,
                       static_cast<int>(sizeof(peer.cause) - 1), peer.cause)
      .WithRank(peer.cause_rank);
}

}  // namespace engine::shm
