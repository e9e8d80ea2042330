// Members of a run that are servers: joining, proving, leaving.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <set>

#include "app/launch/endpoint.h"
#include "app/launch/launch.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

using ::testing::HasSubstr;

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

// Connections to where `run` listens from now on.
std::vector<kit::UniqueFd> ConnectOverNetwork(SocketRun& run, int count) {
  const Endpoint endpoint = *ParseEndpoint("unix:engine-test-" + std::to_string(getpid()));
  run.supervisor().server().Listen(ValueOf(ListenAt(endpoint)));
  base::AbortSignal cancel;
  std::vector<kit::UniqueFd> sockets;
  for (int i = 0; i < count; ++i) {
    sockets.push_back(ValueOf(ConnectTo(endpoint, base::DeadlineIn(kLongMs), cancel)));
  }
  return sockets;
}

// What is said to one that says `hello` over the network; the run has one rank and two servers.
std::string RefusalOf(const Message& hello, bool server_1_is_there = false) {
  Supervisor::Settings settings = SocketRun::SettingsOf({1, 2, true}, kLongMs);
  settings.ranks_may_connect = false;
  SocketRun run(std::move(settings));
  const kit::UniqueFd socket = std::move(ConnectOverNetwork(run, 1)[0]);
  SocketRank rank(run.Connect(), 0, 1);
  std::optional<SocketRank> server;
  if (server_1_is_there) {
    server.emplace(run.Connect(), ServerId(1), 1);
    while (!run.supervisor().members().HasJoined(ServerId(1))) run.supervisor().server().Handle();
  }
  run.Start();
  SendRaw(socket, Encode(hello));
  const Message message = ReadMessage(socket);
  EXPECT_EQ(message.kind, MessageKind::kRefused);
  EXPECT_THAT(run.Notices(1)[0], HasSubstr(message.value));
  EXPECT_FALSE(rank.abort.raised()) << "a pending connection ended the run";
  return message.value;
}

TEST(Servers, TheWrongOnesAreRefusedAndEndNothing) {
  EXPECT_EQ(RefusalOf(Hello(ServerId(2))),
            "there is no server 2 in a run with 2 servers: --index goes from 0 to 1");
  EXPECT_THAT(RefusalOf(Hello(ServerId(0), 0, 9)), HasSubstr("server 0 speaks version 9"));
  EXPECT_EQ(
      RefusalOf(Hello(ServerId(1)), true),
      "two processes say that they are server 1 of the run at the test: give every server its "
      "own --index");
  EXPECT_THAT(RefusalOf(Hello(0, 1)), HasSubstr("only servers may join"));
}

TEST(Servers, ARunWithoutThemSaysSo) {
  SocketRun run(1);
  SocketRank rank(run.Connect(), 0, 1);
  run.Start();
  ASSERT_THAT(rank.Join(), IsOk());
  run.Finish();
  EXPECT_STREQ(run.supervisor().OnHello(Hello(ServerId(0)), false).message(),
               "the run at the test has no servers: start it with --servers");
}

// A run whose one server joins through a listener and must know the key.
class GuardedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    run_.supervisor().server().RequireProof(key_);
    rank_.emplace(run_.Connect(), 0, 1);
    run_.Start();
  }

  Status JoinWith(const std::optional<ServerKey>& key) {
    SocketRank server(std::move(sockets_[joined_++]), ServerId(0), 0, "", key);
    const Status status = server.Join();
    server.client.Leave(status);
    return status;
  }

  engine::testing::TempFolder folder_;
  const ServerKey key_ = ValueOf(ServerKey::LoadOrCreate(folder_ / "key"));
  const ServerKey other_ = ValueOf(ServerKey::LoadOrCreate(folder_ / "other"));
  SocketRun run_{SocketRun::SettingsOf({1, 1, false}, kLongMs)};
  std::optional<SocketRank> rank_;
  std::vector<kit::UniqueFd> sockets_ = ConnectOverNetwork(run_, 3);  // of servers to be
  size_t joined_ = 0;
};

TEST_F(GuardedRun, AdmitsWhoKnowsTheKey) {
  EXPECT_THAT(JoinWith(other_),
              FailsWith(StatusCode::kRendezvous, HasSubstr("does not know the key of this run")));
  EXPECT_TRUE(JoinWith(key_).ok());
  EXPECT_TRUE(rank_->Join().ok());
}

// The answer to one challenge is none to another.
TEST_F(GuardedRun, AReplayedProofIsRefused) {
  const kit::UniqueFd &first = sockets_[0], &second = sockets_[1];
  const std::string hello = Encode(Hello(ServerId(0)));
  SendRaw(first, hello);
  const Message challenge = ReadMessage(first);
  ASSERT_EQ(challenge.kind, MessageKind::kChallenge);
  Message proof;
  proof.kind = MessageKind::kProof;
  const std::string nonce = ServerKey::MakeNonce();
  proof.key = nonce + key_.Prove(ServerKey::Side::kMember, challenge.key, nonce, ServerId(0));
  SendRaw(second, hello);
  EXPECT_EQ(ReadMessage(second).kind, MessageKind::kChallenge);
  SendRaw(second, Encode(proof));
  EXPECT_EQ(ReadMessage(second).kind, MessageKind::kRefused);
  SendRaw(first, Encode(proof));
  EXPECT_EQ(ReadMessage(first).kind, MessageKind::kProof);
}

// Whoever listens in the place of the run gets no server that was given a key.
TEST(Servers, AStoreThatDoesNotKnowTheKeyIsRefused) {
  engine::testing::TempFolder folder;
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

}  // namespace
}  // namespace engine::launch
