// Watches the members of a run through its store server: who is there, who failed first, whose loss
// the run survives, when to give up on the rest.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/exit_code.h"
#include "app/launch/failure_log.h"
#include "app/launch/launch.h"
#include "app/launch/membership.h"
#include "app/launch/store_server.h"
#include "core/base/deadline.h"

namespace engine::launch {

// Lives in the thread of its server.
class Supervisor final : public StoreServer::Observer {
 public:
  struct Loss {
    Status status;  // kAborted: the end of this member was our own doing
    int exit_code = ExitCode(StatusCode::kPeerLost);
  };
  struct Settings {
    RunShape shape;
    std::string job;
    std::string place;  // where the members meet, for messages
    // Without a liveness timeout nobody is asked for a sign of life.
    LaunchOptions options;
    bool ranks_may_connect = true;        // through the listener; false: only servers
    const char* server = "the launcher";  // whose connection a lost member had, for messages
    // Why a member is gone without kBye, if more is known than that. May be null.
    std::function<std::optional<Loss>(int member)> explain_loss;
    // A rank is lost and the run goes on, or would. What becomes of it, if another takes its place:
    // "started again (1 of 3)"; its kHello is taken after Expect. May be null.
    std::function<std::string(int rank)> replace;
    bool replaced_from_elsewhere = false;  // then nobody else calls Expect
    int min_ranks = 0;                     // LaunchPlan
  };

  explicit Supervisor(Settings settings);

  StoreServer& server() { return server_; }
  const Membership& members() const { return members_; }

  // Handles what members say within `timeout_ms`, or until `wake` (a descriptor, or -1) is readable.
  void Step(int timeout_ms, int wake = -1);
  // What happens as time passes: silent members, and the deadlines of joining and leaving.
  void Tick();
  // The first call that is more than a request to stop ends the run for all members. kNobody: the
  // launcher.
  void Fail(int member, const Status& status);
  // Another process takes the place of a lost rank. Not from an observer.
  void Expect(int rank);
  void Notice(const std::string& sentence) const;

  bool failed() const { return failed_; }
  // When the members have had their time to leave after the failure; never without one.
  base::TimePoint grace_end() const { return grace_end_; }
  int stop_signal() const { return stop_signal_; }
  // Nobody is there, and nobody is expected any more.
  bool AllGone() const;
  LaunchOutcome Outcome() const { return failures_.Outcome(stop_signal_); }

  Status OnHello(const Message& hello, bool adopted) override;
  void OnJoined(int member) override;
  void OnReady(int member) override { members_.SetReady(member); }
  void OnHeard(int member) override { members_.Heard(member); }
  void OnSet(int member, const std::string& key) override;
  void OnFail(int member, const Status& status) override;
  // Tells every member that the user asked to stop. When one gives up, or some are not there yet,
  // nobody can finish a step: that ends the run at once.
  void OnStop(int signal, bool gives_up = false) override;
  void OnBye(int member) override;
  void OnLost(int member) override;
  void OnRefusedConnection(const std::string& address, const std::string& why) override;

 private:
  using Phase = Membership::Phase;
  // A rank that left because of others: its own loss, unless the run ends.
  struct SecondaryFailure {
    int rank;
    Status status;
    base::TimePoint due;
  };

  bool Survives(int member) const {
    const bool others_go_on = losses_allowed_ && member >= 1;
    const bool all_begin_again = members_.regroups() && member >= 0 && !somebody_left_;
    return !failed_ && (others_go_on || all_begin_again);
  }
  void LoseSilent(int64_t least_ms, int reporter);
  void LeaveWithin(int64_t timeout_ms, const std::string& reason);
  void EndLate();
  void Lose(int rank, const Loss& loss);
  void ReportSecondaryFailures(bool all);
  void End(const Status& cause);

  const Settings settings_;
  const base::TimePoint rendezvous_deadline_;
  StoreServer server_;
  FailureLog failures_;
  Membership members_;
  std::deque<SecondaryFailure> secondary_failures_;          // in the order of their time
  bool complete_ = false;                                    // every member has joined
  base::TimePoint two_runs_until_ = base::TimePoint::max();  // a rank that comes twice shows them
  bool losses_allowed_ = false;
  std::optional<base::TimePoint> regroup_deadline_;  // of ranks that begin again
  std::vector<int> replaceable_;                     // lost, and Expect has not been called
  bool failed_ = false;
  base::TimePoint grace_end_ = base::TimePoint::max();
  bool ranks_gone_ = false;
  int stop_signal_ = 0;
  base::TimePoint next_look_{};  // for silent members
  // By when all must have left, and why; never: nobody has left or was asked to.
  base::TimePoint leave_deadline_ = base::TimePoint::max();
  std::string leave_reason_;
  bool somebody_left_ = false;
  bool progress_ = false;  // of rank 0, since that was decided
  base::TimePoint next_refusal_line_at_{};
  int64_t unreported_refusals_ = 0;
  std::string last_refusal_;  // of a connection while members were missing
};

}  // namespace engine::launch
