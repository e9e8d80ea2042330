#include "app/launch/failure_log.h"

#include <gtest/gtest.h>
#include <signal.h>

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

TEST(FailureLog, TheFirstPrimaryCauseWins) {
  FailureLog failures;
  failures.AddReport(0, Error(StatusCode::kPeerLost, "lost rank 2"));
  failures.AddReport(1, Error(StatusCode::kInterrupted, "stopped"));
  failures.AddReport(2, Error(StatusCode::kBadData, "bad file"));
  failures.AddReport(3, Error(StatusCode::kConfig, "later"));
  LaunchOutcome outcome = failures.Outcome(SIGINT);
  EXPECT_EQ(outcome.status.code(), StatusCode::kBadData);
  EXPECT_EQ(outcome.status.rank(), 2);
  EXPECT_EQ(outcome.exit_code, 65);
}

TEST(FailureLog, ALossIsPrimaryWhateverItsCode) {
  FailureLog failures;
  failures.AddReport(0, Error(StatusCode::kPeerLost, "lost rank 1"));
  failures.AddLoss(1, Error(StatusCode::kPeerLost, "killed"), 137);
  LaunchOutcome outcome = failures.Outcome(0);
  EXPECT_STREQ(outcome.status.message(), "killed");
  EXPECT_EQ(outcome.status.rank(), 1);
  EXPECT_EQ(outcome.exit_code, 137);
}

TEST(FailureLog, ASecondaryFailureIsBetterThanNothing) {
  FailureLog failures;
  failures.AddReport(0, Error(StatusCode::kPeerLost, "lost rank 1").WithRank(1));
  LaunchOutcome outcome = failures.Outcome(0);
  EXPECT_EQ(outcome.status.rank(), 1);  // whom the status blames, not who says it
  EXPECT_EQ(outcome.exit_code, 200);
}

TEST(FailureLog, InterruptedExitsWithTheSignal) {
  FailureLog failures;
  failures.AddReport(0, Error(StatusCode::kInterrupted, "stopped"));
  failures.AddReport(1, Error(StatusCode::kAborted, "left alone"));
  EXPECT_EQ(failures.Outcome(SIGINT).exit_code, 130);
  EXPECT_EQ(failures.Outcome(SIGTERM).exit_code, 143);
  EXPECT_EQ(failures.Outcome(0).exit_code, 130);
}

TEST(AbortReason, IsSecondaryAndNamesTheRank) {
  Status reason = AbortReason(Error(StatusCode::kConfig, "wrong key").WithRank(3));
  EXPECT_EQ(reason.code(), StatusCode::kAborted);
  EXPECT_EQ(reason.rank(), 3);
  EXPECT_STREQ(reason.message(), "rank 3 failed: wrong key");
  EXPECT_EQ(AbortReason(Error(StatusCode::kPeerLost, "gone")).code(), StatusCode::kPeerLost);
}

TEST(AbortReason, NamesAServer) {
  Status reason = AbortReason(Error(StatusCode::kPeerLost, "killed").WithRank(ServerId(1)));
  EXPECT_STREQ(reason.message(), "server 1 failed: killed");
  EXPECT_EQ(ServerOfId(reason.rank()), 1);
}

TEST(FailureLog, BlamesAServer) {
  FailureLog failures;
  failures.AddReport(2, Error(StatusCode::kPeerLost, "left alone").WithRank(ServerId(0)));
  failures.AddLoss(ServerId(0), Error(StatusCode::kPeerLost, "killed"), 137);
  const LaunchOutcome outcome = failures.Outcome(0);
  EXPECT_EQ(outcome.status.rank(), ServerId(0));
  EXPECT_EQ(outcome.exit_code, 137);
}

}  // namespace
}  // namespace engine::launch
