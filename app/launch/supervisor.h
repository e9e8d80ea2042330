// Watches the members of a run through its store server: who is there, who failed first, whose loss
// the run survives, when to give up on the rest.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/launch/failure_log.h"
#include "app/launch/launch.h"
#include "app/launch/member.h"
#include "app/launch/store_server.h"
#include "core/base/deadline.h"

namespace engine::launch {

// Lives in the thread of its server.
class Supervisor final : public StoreServer::Observer {
 public:
  struct Loss {
    Status status;
    int exit_code = 0;
    bool primary = true;  // false: the end of this member was our own doing
  };
  struct Settings {
    RunShape shape;
    std::string job;
    std::string place;  // where the members meet, for messages
    int64_t rendezvous_timeout_ms = 0;
    int64_t server_leave_ms = 0;    // for servers, after the last rank
    bool ranks_may_connect = true;  // through the listener; false: only servers
    // Why a member is gone without kBye.
    std::function<Loss(int member)> explain_loss;
    // A rank is lost and the run goes on. What becomes of it, if another takes its place: "started
    // again (1 of 3)"; its kHello is taken after Expect. May be null.
    std::function<std::string(int rank)> replace;
    std::function<void(const std::string& sentence)> notice;  // may be null
  };

  explicit Supervisor(Settings settings);

  StoreServer& server() { return server_; }

  // What happens as time passes: the deadlines of the rendezvous and of servers.
  void Tick();
  // The first call that is more than a request to stop ends the run for all members. kNobody: the
  // launcher.
  void Fail(int member, const Status& status);
  // Tells every member that the user asked to stop.
  void Stop(int signal);
  // Another process takes the place of a lost rank. Not from an observer.
  void Expect(int rank);
  void Notice(const std::string& sentence) const;

  bool failed() const { return failed_; }
  base::TimePoint failed_at() const { return failed_at_; }
  int stop_signal() const { return stop_signal_; }
  bool HasJoined(int member) const { return phase(member) == Phase::kJoined; }
  bool IsGone(int member) const { return phase(member) >= Phase::kLeft; }
  // Nobody is there, and nobody is expected any more.
  bool AllGone() const;
  // Members that are there, and neither left nor lost.
  bool SomebodyIsThere() const { return !Remaining().empty(); }
  // "rank 2", "ranks 1, 3 and server 0": those that are there.
  std::string Remaining() const { return List(Phase::kJoined); }
  LaunchOutcome Outcome() const { return failures_.Outcome(stop_signal_); }

  Status OnHello(const Message& hello, bool adopted) override;
  void OnJoined(int member) override;
  void OnFail(int member, const Status& status) override;
  void OnAllowLosses(int member) override;
  void OnStop(int signal) override { Stop(signal); }
  void OnBye(int member) override;
  void OnLost(int member) override;
  void OnRefusedConnection(const std::string& address, const std::string& why) override;
  void OnNoDescriptor() override;

 private:
  enum class Phase { kAbsent, kJoined, kLeft, kLost };
  // A rank that left because of others: its own loss, unless the run ends.
  struct SecondaryFailure {
    int rank;
    Status status;
    base::TimePoint due;
  };

  Phase phase(int member) const { return phases_[settings_.shape.Index(member)]; }
  bool Survives(int member) const { return losses_allowed_ && !failed_ && member >= 1; }
  void Lose(int rank, const Status& status);
  void ReportSecondaryFailures(bool all);
  void End(const Status& cause);
  std::string List(Phase phase) const;

  const Settings settings_;
  const base::TimePoint rendezvous_deadline_;
  StoreServer server_;
  FailureLog failures_;
  std::vector<Phase> phases_;  // by RunShape::Index
  std::vector<SecondaryFailure> secondary_failures_;
  bool complete_ = false;                                    // every member has joined
  base::TimePoint two_runs_until_ = base::TimePoint::max();  // a rank that comes twice shows them
  bool losses_allowed_ = false;
  bool failed_ = false;
  base::TimePoint failed_at_{};
  bool ranks_gone_ = false;
  base::TimePoint servers_deadline_{};  // once ranks_gone_
  int stop_signal_ = 0;
  base::TimePoint next_refusal_line_at_{};
  int64_t unreported_refusals_ = 0;
  std::string last_refusal_;  // of a connection while members were missing
};

}  // namespace engine::launch
