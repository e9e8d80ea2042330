// Runs that survive the loss of a rank, over the control channel and in threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_status.h"
#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

// Ranks 0 to 2 and server 0; losses are allowed.
class Losses : public testing::Test {
 protected:
  void SetUp() override {
    run_.Start();
    for (SocketRank* member : Members()) ASSERT_THAT(member->Join(), IsOk());
    (void)ranks_[0].client.Set(kLossesAllowedKey, "");
    // Its answer says that the server has read what came before.
    ASSERT_TRUE(ranks_[0].client.Set("allowed", "").ok());
  }
  std::vector<SocketRank*> Members() { return {&ranks_[0], &ranks_[1], &ranks_[2], &server_}; }

  SocketRun run_{SocketRun::SettingsOf({3, 1, true}, kLongMs)};
  SocketRank ranks_[3]{{run_.Connect(), 0, 3}, {run_.Connect(), 1, 3}, {run_.Connect(), 2, 3}};
  SocketRank server_{run_.Connect(), ServerId(0), 3};
};

TEST_F(Losses, ARankThatFailsIsToldAndTheRunGoesOn) {
  const Status full = Status::Error(StatusCode::kStorage, "the disk is full");
  ranks_[2].abort.Raise(full);
  ranks_[2].client.Leave(full);  // told once, although it is said twice
  EXPECT_THAT(run_.Notices(1), ElementsAre("rank 2: the disk is full; the run goes on without it"));
  EXPECT_TRUE(ranks_[0].client.Set("still", "served").ok());
  for (int rank : {0, 1}) ranks_[rank].client.Leave({});
  EXPECT_TRUE(server_.client.Get(kRanksLeftKey, kLongMs).ok());
  server_.client.Leave({});
  const LaunchOutcome outcome = run_.Finish().Outcome();
  EXPECT_THAT(outcome.status, IsOk());
  EXPECT_EQ(run_.Notices(0).size(), 1u);
  for (SocketRank* member : {&ranks_[0], &ranks_[1], &server_}) {
    EXPECT_FALSE(member->abort.raised());
  }
}

TEST_F(Losses, AServerAlwaysEndsTheRun) {
  server_.client.Leave(Status::Error(StatusCode::kTimeout, "no progress"));
  EXPECT_STREQ(Await(ranks_[0].abort).message(), "server 0 failed: no progress");
  const LaunchOutcome outcome = run_.Finish().Outcome();
  EXPECT_EQ(outcome.status.rank(), ServerId(0));
  EXPECT_EQ(outcome.exit_code, 202);
}

// Rank 1 has noticed first that the server is gone: that is not a loss of rank 1.
TEST_F(Losses, ASecondaryFailureIsNoLoss) {
  ranks_[1].client.Leave(Status::Error(StatusCode::kPeerLost, "server 0 is silent"));
  server_.client.Leave(Status::Error(StatusCode::kInternal, "a bug"));
  EXPECT_STREQ(Await(ranks_[0].abort).message(), "server 0 failed: a bug");
  EXPECT_EQ(run_.Finish().Outcome().exit_code, 70);
  EXPECT_TRUE(run_.Notices(0).empty());
}

TEST_F(Losses, ASecondaryFailureAloneIsALoss) {
  ranks_[1].client.Leave(Status::Error(StatusCode::kPeerLost, "server 0 is silent"));
  EXPECT_THAT(run_.Notices(1),
              ElementsAre("rank 1: server 0 is silent; the run goes on without it"));
  EXPECT_FALSE(ranks_[0].abort.raised());
}

}  // namespace
}  // namespace engine::launch
