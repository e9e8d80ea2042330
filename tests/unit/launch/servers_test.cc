// Members of a run that are servers: joining, proving, leaving.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>

#include "app/launch/launch.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

TEST(Servers, AreMembersBesideTheRanks) {
  SocketRun run(SocketRun::SettingsOf({1, 2, true}, kLongMs));
  SocketRank rank(run.Connect(), 0, 1);
  SocketRank first(run.Connect(), ServerId(0), 1);
  SocketRank second(run.Connect(), ServerId(1), 0, "");  // knows neither size nor job
  run.Start();
  for (SocketRank* member : {&rank, &first, &second}) {
    ASSERT_THAT(member->Join(), IsOk());
    EXPECT_EQ(member->client.shape().world_size, 1);
    EXPECT_EQ(member->client.shape().servers, 2);
    EXPECT_TRUE(member->client.shape().one_host);
  }
  // A post is for ranks: nobody listens in a server.
  std::atomic<int> heard{0};
  first.client.Listen([&](std::string_view) { ++heard; });
  ASSERT_TRUE(rank.client.Post("ticket").ok());
  ASSERT_TRUE(rank.client.Set("k", "v").ok());
  EXPECT_EQ(*first.client.Get("k", kLongMs), "v");
  EXPECT_EQ(heard, 0);
  EXPECT_FALSE(*second.client.Has(kRanksLeftKey));
  rank.client.Leave({});
  EXPECT_TRUE(second.client.Get(kRanksLeftKey, kLongMs).ok());
  first.client.Leave({});
  second.client.Leave({});
  Supervisor& supervisor = run.Finish();
  EXPECT_TRUE(supervisor.AllGone());
  EXPECT_TRUE(supervisor.Outcome().status.ok());
}

TEST(Servers, AreMissedByName) {
  SocketRun run(SocketRun::SettingsOf({3, 2, true}, 50));
  SocketRank rank(run.Connect(), 1, 3);
  run.Start();
  const Status status = rank.Join();
  EXPECT_THAT(status.message(), HasSubstr("ranks 0, 2 and servers 0, 1 did not join at the test"));
  EXPECT_THAT(status.message(), HasSubstr("check that every rank and server was started"));
  EXPECT_EQ(run.Finish().Outcome().exit_code, 201);
}

// Whoever listens in the place of the run gets no server that was given a key.
TEST(Servers, AStoreThatDoesNotKnowTheKeyIsRefused) {
  engine::test::TempFolder folder;
  const auto key = ValueOf(ServerKey::LoadOrCreate(folder / "key"));
  SocketRun run(SocketRun::SettingsOf({1, 1, true}, kLongMs));
  SocketRank rank(run.Connect(), 0, 1);
  SocketRank server(run.Connect(), ServerId(0), 0, "", key);
  run.Start();
  EXPECT_THAT(server.Join(),
              FailsWith(StatusCode::kRendezvous, HasSubstr("does not know the key")));
}

TEST(ServersInThreads, RunBesideTheRanksAndDoNotStopBeforeThem) {
  const LaunchPlan plan{.mode = LaunchPlan::Mode::kThreads,
                        .info = {.world_size = 3, .servers = 2}};
  std::mutex mutex;
  std::multiset<std::pair<bool, int>> seen;
  const LaunchOutcome outcome = Launch(plan, {}, [&](base::RankContext& context) -> Status {
    const RankInfo& info = context.info;
    EXPECT_EQ(info.world_size, 3);
    EXPECT_EQ(info.servers, 2);
    EXPECT_EQ(info.one_host, 1u);
    {
      const std::lock_guard lock(mutex);
      seen.emplace(info.is_server != 0, info.rank);
    }
    if (info.is_server != 0) {
      const Status left = context.store.Get(kRanksLeftKey, kLongMs).status();
      EXPECT_EQ(context.stop_requested, 0);
      return left;
    }
    if (info.rank == 0) kill(getpid(), SIGTERM);
    while (context.stop_requested == 0) std::this_thread::yield();
    return Status::Error(StatusCode::kInterrupted, "stopped after step 1");
  });
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_EQ(seen, (std::multiset<std::pair<bool, int>>{
                      {false, 0}, {false, 1}, {false, 2}, {true, 0}, {true, 1}}));
}

TEST(Launch, RestoresTheSignalMask) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  (void)Launch({.mode = LaunchPlan::Mode::kThreads}, {},
               [](base::RankContext&) -> Status { return {}; });
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  }
}

}  // namespace
}  // namespace engine::launch
