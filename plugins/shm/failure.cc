#include "failure.h"

#include <cstdio>

#include "futex.h"

namespace engine::shm {

Status Failure::reason() const noexcept {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void Failure::Raise(const Status& reason) noexcept {
  if (Set(reason)) Tell(RankState::kLeft);
}

Status Failure::RaiseFound(const Status& error) noexcept {
  if (Set(error) && own_) {
    own_->cause_code = static_cast<int32_t>(error.code());
    own_->cause_rank = error.rank();
    std::snprintf(own_->cause, sizeof(own_->cause), "%s", error.message());
    Tell(RankState::kGaveUp);
  }
  return reason();
}

bool Failure::Set(const Status& reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (raised_.load(std::memory_order_relaxed)) return false;
  reason_ = reason;
  raised_.store(true, std::memory_order_release);
  return true;
}

void Failure::Tell(RankState state) noexcept {
  if (!own_) return;
  // Publishes the cause, and every round that was published before, to who sees the state.
  own_->state.store(static_cast<uint32_t>(state), std::memory_order_release);
  for (Slot& slot : own_->slots) FutexWake(slot.round);
}

Status WordsOf(const Control& peer, int rank) noexcept {
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
