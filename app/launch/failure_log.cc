#include "app/launch/failure_log.h"

#include <algorithm>

#include "app/launch/exit_code.h"
#include "app/launch/member.h"

namespace engine::launch {

Status Reported(const Status& status, int member) {
  if (status.rank() == base::kNobody) return status.WithRank(member);
  const bool misses =
      status.code() == StatusCode::kTimeout || status.code() == StatusCode::kPeerLost;
  if (!misses || member == base::kNobody || member == status.rank()) return status;
  return status.WithContext("reported by %s", base::MemberName(member).c_str());
}

Status AbortReason(const Status& cause) {
  StatusCode code =
      cause.code() == StatusCode::kPeerLost ? StatusCode::kPeerLost : StatusCode::kAborted;
  if (cause.rank() == base::kNobody) return Status::Error(code, "%s", cause.message());
  return Status::Error(code, "%s failed: %s", base::MemberName(cause.rank()).c_str(),
                       cause.message())
      .WithRank(cause.rank());
}

void FailureLog::AddReport(int member, const Status& status) {
  Weight weight = Weight::kPrimary;
  if (status.code() == StatusCode::kInterrupted) weight = Weight::kInterrupted;
  if (base::IsSecondary(status.code())) weight = Weight::kSecondary;
  entries_.push_back({member, weight, Reported(status, member), ExitCode(status.code())});
}

void FailureLog::AddLoss(int member, const Status& status, int exit_code) {
  const bool has_said_why = std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.member == member && entry.weight != Weight::kInterrupted;
  });
  if (has_said_why) return;
  const bool ended_by_us = status.code() == StatusCode::kAborted;
  entries_.push_back({member, ended_by_us ? Weight::kSecondary : Weight::kPrimary,
                      status.WithRank(member), exit_code});
}

LaunchOutcome FailureLog::Outcome(int stop_signal) const {
  auto best = std::min_element(
      entries_.begin(), entries_.end(),
      [](const Entry& a, const Entry& b) { return a.weight < b.weight; });  // the first of equals
  if (best == entries_.end()) return {};
  const int blamed = best->status.rank();
  const bool nobody = blamed == base::kNobody;
  if (best->status.code() == StatusCode::kTimeout && (nobody || best->member != blamed)) {
    const auto explanation = std::find_if(best + 1, entries_.end(), [=](const Entry& entry) {
      return entry.weight == Weight::kPrimary && entry.status.rank() == entry.member &&
             (nobody ? entry.member != blamed : entry.member == blamed);
    });
    if (explanation != entries_.end()) best = explanation;
  }
  const bool stopped = best->weight == Weight::kInterrupted && stop_signal != 0;
  return {best->status, stopped ? 128 + stop_signal : best->exit_code};
}

}  // namespace engine::launch
