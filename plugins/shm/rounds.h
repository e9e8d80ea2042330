// Going through rounds with the other ranks (control.h has the rules): publish, and wait until
// others have published. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "control.h"
#include "engine/ext/wire_progress.h"
#include "engine/status.h"
#include "kit/deadline.h"
#include "kit/failure.h"
#include "kit/work.h"
#include "rendezvous.h"

namespace engine::shm {

// How the thread that runs a transfer waits.
struct WaitLimits {
  const kit::PooledWork& work;  // the transfer
  int64_t arrival_spin_ns = 0;  // looking for peers that may not have come yet, before it sleeps
  int64_t round_spin_ns = 0;    // looking for peers that are at work on the same transfer
};

class Rounds final : public WireProgressBase {
 public:
  // How long a sleeper does not look whether its peer still lives.
  static constexpr int64_t kTickNs = 50 * 1000000;

  // `overdue(now, moved)` returns the error of a queued transfer that is past its deadline when the
  // last round was published at `moved`: it is asked whenever a sleeper looks around. Everything is
  // borrowed.
  using Overdue = std::function<Status(kit::Clock::time_point now, kit::Clock::time_point moved)>;
  Rounds(int rank, const Mesh& mesh, size_t chunk_bytes, kit::Failure& failure, Overdue overdue);

  // Rounds, of all ranks: whoever waits sees all that moves.
  uint64_t bytes_moved() const noexcept override;

  int rank() const noexcept { return rank_; }
  int world_size() const noexcept { return static_cast<int>(mesh_.peers.size()); }
  size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  Peer& peer(int rank) const noexcept { return *mesh_.peers[static_cast<size_t>(rank)]; }

  uint32_t next() const noexcept { return next_; }  // the round that is published next
  Opening& opening(uint32_t round) noexcept { return own_.slots[round % kSlots].opening; }
  const Opening& opening(int peer, uint32_t round) const noexcept {
    return this->peer(peer).control().slots[round % kSlots].opening;
  }
  uint8_t* stage(uint32_t round) noexcept { return stages_ + (round % kSlots) * chunk_bytes_; }

  // Whether slot and stage of the next round may be written.
  bool Writable() noexcept { return AllReached(next_ - kReadBehind); }
  Status AwaitWritable(const WaitLimits& limits) noexcept {
    return AwaitAll(next_ - kReadBehind, limits, limits.round_spin_ns);
  }
  // Publishes what this rank wrote for the next round, and everything before.
  void Publish() noexcept;

  // Whether all peers have published `round`. Never blocks.
  bool AllReached(uint32_t round) noexcept;
  Status AwaitAll(uint32_t round, const WaitLimits& limits, int64_t spin_ns) noexcept;

 private:
  bool Reached(int peer, uint32_t round) noexcept;
  Status Await(int peer, uint32_t round, const WaitLimits& limits, int64_t spin_ns) noexcept;
  Status Sleep(int peer, uint32_t round, const WaitLimits& limits) noexcept;
  Status LookAround(int peer, uint32_t round, const WaitLimits& limits) noexcept;
  // The last round that a rank has published.
  uint32_t Newest(const Control& control) const noexcept;
  int FarthestBehind(int fallback) const noexcept;

  const int rank_;
  const Mesh& mesh_;
  const size_t chunk_bytes_;
  kit::Failure& failure_;
  const Overdue overdue_;
  Control& own_;
  uint8_t* const stages_;
  uint32_t next_ = 1;
  std::vector<uint32_t> seen_;  // by rank: a round that it has published
  uint64_t moved_ = 0;          // bytes_moved() when a sleeper last looked, and since when
  kit::Clock::time_point moved_at_;
};

}  // namespace engine::shm
