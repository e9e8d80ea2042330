// Who is there: the phase of every member of a run, and how long each has been silent.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "app/launch/deadlines.h"
#include "app/launch/member.h"
#include "core/base/deadline.h"

namespace engine::launch {

// For how long nothing was heard of a peer. Of one thread. A look counts at most 2 * kPingMs: when
// the watcher itself was stopped (Ctrl-Z, a paused machine) or got no processor, the time since its
// last look says nothing of the peer.
class Silence {
 public:
  void Heard() {
    ms_ = 0;
    looked_at_ = std::chrono::steady_clock::now();
  }
  // Look at least every kPingMs.
  int64_t Look() {
    const base::TimePoint now = std::chrono::steady_clock::now();
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(now - looked_at_);
    ms_ += std::min<int64_t>(passed.count(), 2 * kPingMs);
    looked_at_ = now;
    return ms_;
  }

 private:
  int64_t ms_ = 0;
  base::TimePoint looked_at_ = std::chrono::steady_clock::now();
};

class Membership {
 public:
  // Dropped: lost, and nobody takes its place.
  enum class Phase { kAbsent, kJoined, kLeft, kLost, kDropped };

  explicit Membership(const RunShape& shape) : shape_(shape), members_(shape.members()) {}

  void Set(int member, Phase phase) { members_[shape_.Index(member)] = {phase, {}}; }
  bool IsAbsent(int member) const { return phase(member) == Phase::kAbsent; }
  bool HasJoined(int member) const { return phase(member) == Phase::kJoined; }
  bool IsGone(int member) const { return phase(member) >= Phase::kLeft; }
  bool IsLost(int member) const { return phase(member) == Phase::kLost; }
  bool SomebodyIsAbsent() const { return Has(Phase::kAbsent); }
  bool SomebodyIsThere() const { return Has(Phase::kJoined); }
  bool RanksAreGone() const;
  // Every member has been there and is gone.
  bool AllAreGone() const { return !SomebodyIsAbsent() && !SomebodyIsThere(); }
  // "rank 2", "ranks 1, 3 and server 0".
  std::string List(Phase phase) const;
  // Those that are there.
  std::string Remaining() const { return List(Phase::kJoined); }

  // Whether all ranks begin again after the loss of one (kRegroupKey).
  void SetRegroups(bool regroups) { regroups_ = regroups; }
  bool regroups() const { return regroups_; }
  // After such a loss: who has ended its work. Until all that are left have, which begin again then:
  // if some were dropped, with new numbers, in this order.
  void SetReady(int member) { members_[shape_.Index(member)].ready = true; }
  std::vector<int> BeginAgain();
  std::vector<int> Missing() const;  // those that are neither ready nor dropped
  // Drops it if at least `min_ranks`, which is not 0, are left without it.
  bool Drop(int rank, int min_ranks);

  void Heard(int member) { members_[shape_.Index(member)].silence.Heard(); }
  struct Silent {
    int member = base::kNobody;
    int64_t ms = 0;
  };
  // Of those that are there, who has been silent for longest. See Silence::Look.
  Silent LongestSilent();

 private:
  struct Member {
    Phase phase = Phase::kAbsent;
    Silence silence;
    bool ready = false;
  };

  bool Has(Phase phase) const;
  Phase phase(int member) const { return members_[shape_.Index(member)].phase; }

  const RunShape shape_;
  bool regroups_ = false;
  std::vector<Member> members_;  // by RunShape::Index
};

}  // namespace engine::launch
