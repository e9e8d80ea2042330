// Why a run ended: when one member fails, others fail of that, and one of them knows the cause.
#pragma once

#include <vector>

#include "app/launch/launch.h"
#include "engine/status.h"

namespace engine::launch {

// What `member` says, as all read it: it blames a member, and names who has waited for that one in
// vain or lost it.
Status Reported(const Status& status, int member);

// What the AbortSignal of the other members is raised with when `cause` ends the run: secondary,
// so that one that returns it is not taken for the cause.
Status AbortReason(const Status& cause);

// Collects what is known and names the best: the first primary cause, else the user's
// request to stop, else the first secondary failure. A timeout of whoever has waited for another one
// is explained by what that one says of itself later. Of one thread.
class FailureLog {
 public:
  // What `member` (or -1: the launcher) says of itself, or of whom the status blames.
  void AddReport(int member, const Status& status);
  // What was seen of a member that could not speak: primary, but for kAborted (we ended it). How one
  // ended that had already said why it fails counts for nothing.
  void AddLoss(int member, const Status& status, int exit_code);

  // `stop_signal`: by which the user asked to stop, or 0.
  LaunchOutcome Outcome(int stop_signal) const;

 private:
  enum class Weight { kPrimary, kInterrupted, kSecondary };
  struct Entry {
    int member;
    Weight weight;
    Status status;
    int exit_code;
  };

  std::vector<Entry> entries_;  // in order of arrival
};

}  // namespace engine::launch
