// Joining, failing and leaving over the control channel.

#include "app/launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <future>
#include <optional>
#include <utility>

#include "tests/support/expect_status.h"
#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

bool ClosedByPeer(const kit::UniqueFd& socket) {
  pollfd entry{socket.get(), POLLIN, 0};
  char byte = 0;
  while (poll(&entry, 1, kLongMs) > 0) {
    if (recv(socket.get(), &byte, 1, 0) <= 0) return true;
  }
  return false;
}

class TwoRanks : public testing::Test {
 protected:
  void SetUp() override {
    run_.Start();
    ASSERT_THAT(a_.Join(), IsOk());
    ASSERT_THAT(b_.Join(), IsOk());
  }

  SocketRun run_{2};
  SocketRank a_{run_.Connect(), 0, 2}, b_{run_.Connect(), 1, 2};
};

TEST_F(TwoRanks, LeaveInPeace) {
  a_.client.Leave({});
  EXPECT_TRUE(b_.client.Set("k", "v").ok());
  b_.client.Leave({});
  Supervisor& supervisor = run_.Finish();
  EXPECT_TRUE(supervisor.AllGone());
  EXPECT_TRUE(supervisor.Outcome().status.ok());
  EXPECT_FALSE(b_.abort.raised());
}

TEST_F(TwoRanks, AFailureReachesTheOther) {
  b_.client.Leave(Status::Error(StatusCode::kBadData, "a bad file"));
  Status reason = Await(a_.abort);
  EXPECT_EQ(reason.code(), StatusCode::kAborted);
  EXPECT_EQ(reason.rank(), 1);
  EXPECT_STREQ(reason.message(), "rank 1 failed: a bad file");
  EXPECT_EQ(a_.client.cause().code(), StatusCode::kBadData);
  a_.client.Leave(reason);
  LaunchOutcome outcome = run_.Finish().Outcome();
  EXPECT_EQ(outcome.status.rank(), 1);
  EXPECT_STREQ(outcome.status.message(), "a bad file");
  EXPECT_EQ(outcome.exit_code, 65);
}

TEST_F(TwoRanks, ARankThatGivesItselfUpIsHeardBeforeItLeaves) {
  b_.abort.Raise(Status::Error(StatusCode::kTimeout, "no progress"));
  EXPECT_STREQ(Await(a_.abort).message(), "rank 1 failed: no progress");
  EXPECT_EQ(run_.Finish().Outcome().exit_code, 202);
}

TEST_F(TwoRanks, AStopReachesAllAndIsNoFailure) {
  b_.client.RequestStop(SIGTERM);
  base::TimePoint deadline = base::DeadlineIn(kLongMs);
  while ((a_.stop == 0 || b_.stop == 0) && !base::Passed(deadline)) std::this_thread::yield();
  EXPECT_EQ(a_.stop, SIGTERM);
  EXPECT_EQ(b_.stop, SIGTERM);
  b_.client.Leave(Status::Error(StatusCode::kInterrupted, "stopped after step 3"));
  EXPECT_TRUE(a_.client.Set("still", "served").ok());
  a_.client.Leave(Status::Error(StatusCode::kInterrupted, "stopped after step 3"));
  LaunchOutcome outcome = run_.Finish().Outcome();
  EXPECT_EQ(outcome.status.code(), StatusCode::kInterrupted);
  EXPECT_EQ(outcome.exit_code, 143);
}

// All are there, but it has not heard of that: the other would wait for it.
TEST_F(TwoRanks, OneThatIsStoppedBeforeItStartsStopsTheOther) {
  b_.abort.Raise(Status::Error(StatusCode::kInterrupted, "stopped before the start"));
  b_.client.RequestStop(SIGTERM);
  b_.client.Leave(b_.abort.reason());
  EXPECT_THAT(Await(a_.abort), FailsWith(StatusCode::kAborted, HasSubstr("stopped by SIGTERM")));
  a_.client.Leave(Status::Error(StatusCode::kTimeout, "rank 1 did not come"));
  EXPECT_EQ(run_.Finish().Outcome().exit_code, 143);
}

TEST_F(TwoRanks, ALostServerRaisesTheAbort) {
  run_.Finish();
  EXPECT_THAT(Await(a_.abort), FailsWith(StatusCode::kPeerLost, HasSubstr("the server")));
  EXPECT_TRUE(a_.client.lost());
}

// Three ranks that begin again after a loss.
struct Regrouping {
  explicit Regrouping(int replacements, int min_ranks = 0)
      : run(Settings(replacements, min_ranks)) {
    run.Start();
    for (SocketRank* rank : {&a, &b, &*c}) EXPECT_THAT(rank->Join(), IsOk());
    EXPECT_THAT(a.client.Set(kRegroupKey, ""), IsOk());
    EXPECT_THAT(a.client.Set("of", "the first time"), IsOk());
  }
  static Supervisor::Settings Settings(int replacements, int min_ranks) {
    Supervisor::Settings settings = SocketRun::SettingsOf({3, 0, true}, kLongMs);
    settings.replace = [left = replacements](int) mutable {
      return left-- > 0 ? "another comes" : "";
    };
    settings.replaced_from_elsewhere = true;
    settings.min_ranks = min_ranks;
    return settings;
  }
  Status Rejoin(SocketRank& rank) {
    return rank.client.Rejoin(Await(rank.abort), base::DeadlineIn(kLongMs));
  }

  SocketRun run;
  kit::UniqueFd spare = run.Connect();
  SocketRank a{run.Connect(), 0, 3}, b{run.Connect(), 1, 3};
  std::optional<SocketRank> c{std::in_place, run.Connect(), 2, 3};
};

TEST(Supervisor, ALostRankIsReplacedAndAllBeginAgain) {
  Regrouping three(/*replacements=*/1);
  three.c.reset();
  EXPECT_THAT(Await(three.a.abort), FailsWith(StatusCode::kPeerLost, HasSubstr("rank 2 failed")));
  // What it says of the loss meanwhile ends nothing.
  three.b.client.Report(Status::Error(StatusCode::kPeerLost, "rank 2 is gone"));
  auto other = std::async([&] { return three.Rejoin(three.b); });
  three.run.Notices(1);
  SocketRank again(std::move(three.spare), 2, 3);
  EXPECT_THAT(three.Rejoin(three.a), IsOk());
  EXPECT_THAT(other.get(), IsOk());
  EXPECT_THAT(again.Join(), IsOk());
  EXPECT_FALSE(three.a.abort.raised());
  EXPECT_FALSE(*three.a.client.Has("of")) << "the store keeps what the lost ones have said";
  EXPECT_TRUE(*again.client.Has(kRegroupedKey));
  EXPECT_TRUE(three.a.client.shape().left.empty());
}

// Tickets of rank 0, which nobody listens to any more when they come.
TEST(Supervisor, WhatWasPostedBeforeALossIsNotHeardAfterIt) {
  Regrouping three(/*replacements=*/1);
  EXPECT_THAT(three.a.client.Post("of the first time"), IsOk());
  three.c.reset();
  three.run.Notices(1);
  auto other = std::async([&] { return three.Rejoin(three.b); });
  SocketRank again(std::move(three.spare), 2, 3);
  EXPECT_THAT(three.Rejoin(three.a), IsOk());
  EXPECT_THAT(other.get(), IsOk());
  std::promise<std::string> heard;
  three.b.client.Listen([&](std::string_view text) { heard.set_value(std::string(text)); });
  EXPECT_THAT(three.a.client.Post("of the second"), IsOk());
  EXPECT_EQ(heard.get_future().get(), "of the second");
  three.b.client.Listen(nullptr);
}

// Whose peer is lost while they meet.
TEST(Supervisor, RanksThatFailToMeetBecauseOfALossEndNothing) {
  Regrouping three(/*replacements=*/1);
  three.b.client.Report(Status::Error(StatusCode::kRendezvous, "a connection broke"));
  three.c.reset();
  three.run.Notices(1);
  auto other = std::async([&] { return three.Rejoin(three.b); });
  SocketRank again(std::move(three.spare), 2, 3);
  EXPECT_THAT(three.Rejoin(three.a), IsOk());
  EXPECT_THAT(other.get(), IsOk());
}

TEST(Supervisor, ARunThatDoesNotKeepItsStepsEndsWithALoss) {
  Regrouping three(/*replacements=*/1);
  EXPECT_THAT(three.b.client.Set(kNoRegroupKey, ""), IsOk());
  three.c.reset();
  EXPECT_THAT(three.Rejoin(three.a), FailsWith(StatusCode::kPeerLost, HasSubstr("rank 2")));
  EXPECT_EQ(three.run.Finish().Outcome().status.rank(), 2);
}

TEST(Supervisor, TheRestHasNewNumbersWhereNobodyComes) {
  Regrouping three(/*replacements=*/0, /*min_ranks=*/2);
  three.c.reset();
  auto other = std::async([&] { return three.Rejoin(three.b); });
  EXPECT_THAT(three.Rejoin(three.a), IsOk());
  EXPECT_THAT(other.get(), IsOk());
  EXPECT_THAT(three.b.client.shape().left, testing::ElementsAre(0, 1));
}

TEST(Supervisor, ALossThatNobodyReplacesEndsTheRun) {
  Regrouping three(/*replacements=*/0);
  three.c.reset();
  EXPECT_THAT(three.Rejoin(three.a), FailsWith(StatusCode::kPeerLost, HasSubstr("rank 2")));
  EXPECT_EQ(three.run.Finish().Outcome().status.rank(), 2);
}

// Another failure than of who was lost.
TEST(Supervisor, AFailureOfItsOwnEndsARunThatSurvivesLosses) {
  Regrouping three(/*replacements=*/1);
  three.b.client.Report(Status::Error(StatusCode::kConfig, "diverged"));
  EXPECT_THAT(three.Rejoin(three.a), FailsWith(StatusCode::kAborted, HasSubstr("diverged")));
}

TEST(Supervisor, ARankThatSendsInvalidDataIsLost) {
  SocketRun run(2);
  SocketRank a(run.Connect(), 0, 2);
  const kit::UniqueFd raw = run.Connect();
  SendRaw(raw, Encode(Hello(1, 2)));
  run.Start();
  ASSERT_THAT(a.Join(), IsOk());
  SendRaw(raw, Encode({MessageKind::kWelcome, 0, 0, 0, "", ""}));  // only a server says that
  EXPECT_EQ(Await(a.abort).rank(), 1);
  EXPECT_TRUE(ClosedByPeer(raw));
  EXPECT_EQ(run.Finish().Outcome().status.rank(), 1);
}

// Two ranks, of which the second says nothing more after it has joined.
struct HalfSilent {
  explicit HalfSilent(int64_t liveness_timeout_ms) : run(SettingsWith(liveness_timeout_ms)) {
    SendRaw(silent, Encode(Hello(1, 2)));
    run.Start();
    EXPECT_THAT(rank.Join(), IsOk());
  }
  static Supervisor::Settings SettingsWith(int64_t liveness_timeout_ms) {
    Supervisor::Settings settings = SocketRun::SettingsOf({2, 0, true}, kLongMs);
    settings.options.liveness_timeout_ms = liveness_timeout_ms;
    return settings;
  }

  SocketRun run;
  SocketRank rank{run.Connect(), 0, 2};
  const kit::UniqueFd silent = run.Connect();
};

TEST(Liveness, AMemberThatIsSilentIsLost) {
  HalfSilent members(1500);
  EXPECT_EQ(Await(members.rank.abort).rank(), 1);
  const LaunchOutcome outcome = members.run.Finish().Outcome();
  EXPECT_THAT(outcome.status, FailsWith(StatusCode::kTimeout, HasSubstr("no sign of life")));
  EXPECT_EQ(outcome.exit_code, 202);
}

// Who waits in vain for a silent one is not to blame, and neither is whom it takes for the cause.
TEST(Liveness, ATimeoutIsBlamedOnWhoIsSilent) {
  HalfSilent members(kLongMs);
  std::this_thread::sleep_for(std::chrono::milliseconds(kSuspectMs + kPingMs));
  members.rank.client.Leave(Status::Error(StatusCode::kTimeout, "nothing came").WithRank(0));
  EXPECT_EQ(members.run.Finish().Outcome().status.rank(), 1);
}

TEST(Liveness, AMemberFindsASilentServer) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const kit::UniqueFd server(pair[0]);
  SocketRank rank(kit::UniqueFd(pair[1]), 0, 1);
  SendRaw(server, Encode({.kind = MessageKind::kPing, .number = 1000}));
  SendRaw(server, Encode({.kind = MessageKind::kWelcome, .number = 1}));
  ASSERT_THAT(rank.Join(), IsOk());
  EXPECT_THAT(Await(rank.abort), FailsWith(StatusCode::kPeerLost, HasSubstr("lost the server")));
  EXPECT_TRUE(rank.client.lost());
}

TEST(Liveness, TimeInWhichTheWatcherStoodStillDoesNotCount) {
  Silence silence;
  silence.Heard();
  std::this_thread::sleep_for(std::chrono::milliseconds(2 * kPingMs + 50));
  EXPECT_LE(silence.Look(), 2 * kPingMs);
  EXPECT_GE(silence.Look(), 2 * kPingMs);
}

TEST(Supervisor, APendingConnectionDisturbsNothing) {
  SocketRun run(1);
  SocketRank a(run.Connect(), 0, 1);
  kit::UniqueFd http = run.Connect(), early = run.Connect(), bomb = run.Connect(),
                other = run.Connect();
  SendRaw(http, "GET / HTTP/1.1\r\n\r\n");
  SendRaw(early, Encode({MessageKind::kSet, 1, 0, 0, "k", "v"}));  // before kHello
  SendRaw(bomb, std::string("\xff\xff\xff\x03", 4));
  SendRaw(other, Encode(Hello(0, 1, kProtocolVersion, "another job")));
  run.Start();
  ASSERT_THAT(a.Join(), IsOk());
  for (const kit::UniqueFd* socket : {&http, &early, &bomb, &other}) {
    EXPECT_TRUE(ClosedByPeer(*socket));
  }
  EXPECT_FALSE(*a.client.Has("k"));
  a.client.Leave({});
  EXPECT_TRUE(run.Finish().Outcome().status.ok());
}

// The refused rank and the run both say why.
void ExpectRefused(const Message& hello, const char* why) {
  SocketRun run(2);
  kit::UniqueFd raw = run.Connect();
  SocketRank a(run.Connect(), 0, 2);
  // Refusals are decided by comparison with a rank 0 that is there.
  while (!run.supervisor().members().HasJoined(0)) run.supervisor().Step(5);
  run.Start();
  std::thread joining([&] {
    Status status = a.Join();
    EXPECT_THAT(status.message(), HasSubstr(why));
    a.client.Leave(status);
  });
  SendRaw(raw, Encode(hello));
  const Message message = ReadMessage(raw);
  EXPECT_EQ(message.kind, MessageKind::kRefused);
  EXPECT_THAT(message.value, HasSubstr(why));
  joining.join();
  LaunchOutcome outcome = run.Finish().Outcome();
  EXPECT_THAT(outcome.status.message(), HasSubstr(why));
  EXPECT_EQ(outcome.exit_code, 201);
}

TEST(Supervisor, RefusesRanksThatDoNotBelongToTheRun) {
  ExpectRefused(Hello(1, 4), "rank 1 was started as one of 4 ranks");
  ExpectRefused(Hello(0, 2), "two processes say that they are rank 0");
  ExpectRefused(Hello(-1, 2), "there is no rank -1 among 2 ranks");
  ExpectRefused(Hello(1, 2, kProtocolVersion + 1), "start all members from the same build");
}

}  // namespace
}  // namespace engine::launch
