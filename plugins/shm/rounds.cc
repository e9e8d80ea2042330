#include "rounds.h"

#include <atomic>
#include <utility>

#include "futex.h"
#include "kit/thread.h"
#include "worker.h"

namespace engine::shm {

// Looks at the clock only now and then.
constexpr int kLooksPerClock = 32;
// A peer at work on the same transfer is often a hundred nanoseconds away: no pauses at first.
constexpr int kEagerLooks = 256;

Rounds::Rounds(int rank, const Mesh& mesh, size_t chunk_bytes, kit::Failure& failure,
               Overdue overdue)
    : rank_(rank),
      mesh_(mesh),
      chunk_bytes_(chunk_bytes),
      failure_(failure),
      overdue_(std::move(overdue)),
      own_(mesh.control()),
      stages_(mesh.own->data() + kControlBytes),
      seen_(mesh.peers.size(), 0) {}

void Rounds::Publish() noexcept {
  std::atomic<uint32_t>& word = own_.slots[next_ % kSlots].round;
  word.store(next_, std::memory_order_release);
  ++next_;
  // A peer announces that it is about to sleep and looks once more; this rank publishes and looks
  // for sleepers. One of the two sees the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (own_.sleepers.load(std::memory_order_relaxed) != 0) FutexWake(word);
}

bool Rounds::Reached(int peer, uint32_t round) noexcept {
  uint32_t& seen = seen_[static_cast<size_t>(peer)];
  if (shm::Reached(seen, round)) return true;
  const std::atomic<uint32_t>& word = this->peer(peer).control().slots[round % kSlots].round;
  const uint32_t now = word.load(std::memory_order_acquire);
  if (!shm::Reached(now, round)) return false;
  seen = now;
  return true;
}

bool Rounds::AllReached(uint32_t round) noexcept {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank_ && !Reached(peer, round)) return false;
  }
  return true;
}

Status Rounds::AwaitAll(uint32_t round, const WaitLimits& limits, int64_t spin_ns) noexcept {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_ || Reached(peer, round)) continue;
    ENGINE_RETURN_IF_ERROR(Await(peer, round, limits, spin_ns));
  }
  return {};
}

Status Rounds::Await(int peer, uint32_t round, const WaitLimits& limits, int64_t spin_ns) noexcept {
  if (spin_ns > 0) {
    for (int look = 0; look < kEagerLooks; ++look) {
      if (Reached(peer, round)) return {};
    }
    const int64_t end = kit::MonotonicNs() + spin_ns;
    do {
      for (int look = 0; look < kLooksPerClock; ++look) {
        kit::Pause();
        if (Reached(peer, round)) return {};
      }
    } while (kit::MonotonicNs() < end && !failure_.raised());
  }
  Control& control = this->peer(peer).control();
  control.sleepers.fetch_add(1, std::memory_order_seq_cst);
  const Status status = Sleep(peer, round, limits);
  control.sleepers.fetch_sub(1, std::memory_order_relaxed);
  return status;
}

Status Rounds::Sleep(int peer, uint32_t round, const WaitLimits& limits) noexcept {
  Control& control = this->peer(peer).control();
  std::atomic<uint32_t>& word = control.slots[round % kSlots].round;
  while (true) {
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see Publish
    const uint32_t value = word.load(std::memory_order_acquire);
    if (Reached(peer, round)) return {};
    ENGINE_RETURN_IF_ERROR(LookAround(peer, round, limits));
    if (control.unattended.load(std::memory_order_relaxed) != 0) Ring(control);
    FutexWait(word, value, kTickNs);
  }
}

Status Rounds::LookAround(int peer, uint32_t round, const WaitLimits& limits) noexcept {
  if (failure_.raised()) return failure_.reason();
  Status end = EndOf(this->peer(peer).control(), peer);
  if (end.ok() && this->peer(peer).gone()) {
    end = EndOf(this->peer(peer).control(), peer);  // what it wrote before it went
    if (end.ok()) end = Status::Error(StatusCode::kPeerLost, "rank %d died", peer).WithRank(peer);
  }
  // A rank that did its part and left is no loss.
  if (!end.ok()) return Reached(peer, round) ? Status() : end;
  const kit::Clock::time_point now = kit::Clock::now();
  if (std::exchange(moved_, bytes_moved()) != moved_) moved_at_ = now;
  if (now < limits.work.DeadlineAfter(moved_at_)) return overdue_(now, moved_at_);
  const int late = FarthestBehind(peer);
  return Status::Error(StatusCode::kTimeout, "did not move for %lld ms: still waiting for rank %d",
                       static_cast<long long>(limits.work.transfer().timeout_ms), late)
      .WithRank(late);
}

uint32_t Rounds::Newest(const Control& control) const noexcept {
  uint32_t newest = control.slots[0].round.load(std::memory_order_relaxed);
  for (const Slot& slot : control.slots) {
    const uint32_t round = slot.round.load(std::memory_order_relaxed);
    if (shm::Reached(round, newest)) newest = round;
  }
  return newest;
}

uint64_t Rounds::bytes_moved() const noexcept {
  uint64_t rounds = 0;
  for (int rank = 0; rank < world_size(); ++rank) {
    rounds += Newest(rank == rank_ ? own_ : peer(rank).control());
  }
  return rounds;
}

// A peer that waits for a third rank is not to blame: it has published more than that one.
int Rounds::FarthestBehind(int fallback) const noexcept {
  int last = fallback;
  uint32_t least = next_;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == rank_) continue;
    const uint32_t newest = Newest(peer(rank).control());
    if (shm::Reached(newest, least)) continue;
    least = newest;
    last = rank;
  }
  return last;
}

}  // namespace engine::shm
