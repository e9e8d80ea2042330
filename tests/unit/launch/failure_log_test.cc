#include "app/launch/failure_log.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "app/launch/member.h"
#include "tests/support/expect_status.h"

namespace engine::launch {
namespace {

Status Error(StatusCode code, const char* text) {
  return Status::Error(code, "%s", text);
}

TEST(FailureLog, IsOkWithoutFailures) {
  FailureLog failures;
  EXPECT_TRUE(failures.Outcome(0).status.ok());
  EXPECT_EQ(failures.Outcome(0).exit_code, 0);
  EXPECT_EQ(failures.Outcome(SIGTERM).exit_code, 0);  // asked to stop, but the work was done
}

struct Ends {
  int rank;
  int exit_code;
  const char* message;
};
void ExpectOutcome(const FailureLog& failures, const Ends& expected, int signal = 0) {
  const LaunchOutcome outcome = failures.Outcome(signal);
  EXPECT_EQ(outcome.status.rank(), expected.rank);
  EXPECT_EQ(outcome.exit_code, expected.exit_code);
  EXPECT_STREQ(outcome.status.message(), expected.message);
}

// A member that has said why it fails may crash while it ends.
TEST(FailureLog, HowAMemberEndsAfterItsReportCountsForNothing) {
  FailureLog failures;
  failures.AddReport(1, Error(StatusCode::kPeerLost, "lost rank 2"));
  failures.AddLoss(1, Error(StatusCode::kPeerLost, "killed by signal 6"), 134);
  ExpectOutcome(failures, {1, 200, "lost rank 2"});
  failures.AddReport(0, Error(StatusCode::kInterrupted, "stopped"));
  failures.AddLoss(0, Error(StatusCode::kPeerLost, "killed by signal 11"), 139);
  ExpectOutcome(failures, {0, 139, "killed by signal 11"});
}

TEST(FailureLog, TheFirstPrimaryCauseWins) {
  FailureLog failures;
  failures.AddReport(0, Error(StatusCode::kPeerLost, "lost rank 2"));
  failures.AddReport(1, Error(StatusCode::kInterrupted, "stopped"));
  failures.AddReport(2, Error(StatusCode::kBadData, "bad file"));
  failures.AddReport(3, Error(StatusCode::kConfig, "later"));
  ExpectOutcome(failures, {2, 65, "bad file"}, SIGINT);
}

// Whoever waits for a rank gives up before that one knows that its plugin hangs.
TEST(FailureLog, ATimeoutIsExplainedByTheOneThatWasWaitedFor) {
  const Status hangs = Error(StatusCode::kTimeout, "plugin 'x' has not returned");
  for (const int blamed : {2, base::kNobody}) {
    FailureLog failures;
    const int waits = blamed == 2 ? 0 : base::kNobody;  // a rank, or the launcher
    failures.AddReport(waits, Error(StatusCode::kTimeout, "waits").WithRank(blamed));
    failures.AddReport(1, Error(StatusCode::kTimeout, "waits for 0").WithRank(0));
    if (blamed == 2) failures.AddReport(1, hangs);
    failures.AddReport(2, Error(StatusCode::kAborted, "of another"));
    ExpectOutcome(failures, {blamed, 202, blamed == 2 ? "reported by rank 0: waits" : "waits"});
    failures.AddReport(2, hangs);
    ExpectOutcome(failures, {2, 202, "plugin 'x' has not returned"});
  }
}

TEST(FailureLog, ALossIsPrimaryWhateverItsCode) {
  for (const int lost : {1, ServerId(0)}) {
    FailureLog failures;
    failures.AddReport(0, Error(StatusCode::kPeerLost, "left alone").WithRank(lost));
    failures.AddLoss(lost, Error(StatusCode::kPeerLost, "killed"), 137);
    ExpectOutcome(failures, {lost, 137, "killed"});
  }
}

TEST(FailureLog, ASecondaryFailureIsBetterThanNothing) {
  FailureLog failures;
  failures.AddReport(0, Error(StatusCode::kPeerLost, "lost rank 1").WithRank(1));
  ExpectOutcome(failures, {1, 200, "reported by rank 0: lost rank 1"});
}

TEST(FailureLog, InterruptedExitsWithTheSignal) {
  FailureLog failures;
  failures.AddReport(0, Error(StatusCode::kInterrupted, "stopped"));
  failures.AddReport(1, Error(StatusCode::kAborted, "left alone"));
  EXPECT_EQ(failures.Outcome(SIGINT).exit_code, 130);
  EXPECT_EQ(failures.Outcome(SIGTERM).exit_code, 143);
  EXPECT_EQ(failures.Outcome(0).exit_code, 130);
}

TEST(AbortReason, IsSecondaryAndNamesTheMember) {
  const Status rank = AbortReason(Error(StatusCode::kConfig, "wrong key").WithRank(3));
  EXPECT_EQ(rank.rank(), 3);
  EXPECT_THAT(rank, FailsWith(StatusCode::kAborted, "rank 3 failed: wrong key"));
  const Status server = AbortReason(Error(StatusCode::kPeerLost, "killed").WithRank(ServerId(1)));
  EXPECT_EQ(ServerOfId(server.rank()), 1);
  EXPECT_THAT(server, FailsWith(StatusCode::kPeerLost, "server 1 failed: killed"));
}

}  // namespace
}  // namespace engine::launch
