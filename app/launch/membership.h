// Who is there: the phase of every member of a run, and how long each has been silent.
#pragma once

#include <string>
#include <vector>

#include "app/launch/member.h"
#include "app/launch/silence.h"

namespace engine::launch {

class Membership {
 public:
  enum class Phase { kAbsent, kJoined, kLeft, kLost };

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
  };

  bool Has(Phase phase) const;
  Phase phase(int member) const { return members_[shape_.Index(member)].phase; }

  const RunShape shape_;
  std::vector<Member> members_;  // by RunShape::Index
};

}  // namespace engine::launch
