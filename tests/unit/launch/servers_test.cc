// Members of a run that are servers: joining, proving, leaving.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <set>

#include "app/launch/endpoint.h"
#include "app/launch/launch.h"
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
    ASSERT_TRUE(member->client.Join(base::DeadlineIn(kLongMs)).ok());
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
  const Status status = rank.client.Join(base::DeadlineIn(kLongMs));
  EXPECT_THAT(status.message(), HasSubstr("ranks 0, 2 and servers 0, 1 did not join at the test"));
  EXPECT_THAT(status.message(), HasSubstr("check that every rank and server was started"));
  EXPECT_EQ(run.Finish().Outcome().exit_code, 201);
}

TEST(Servers, OneThatStaysIsNamed) {
  Supervisor::Settings settings = SocketRun::SettingsOf({1, 2, true}, kLongMs);
  settings.server_leave_ms = 1;
  SocketRun run(std::move(settings));
  SocketRank rank(run.Connect(), 0, 1);
  SocketRank first(run.Connect(), ServerId(0), 1), second(run.Connect(), ServerId(1), 1);
  run.Start();
  for (SocketRank* member : {&rank, &first, &second}) {
    ASSERT_TRUE(member->client.Join(base::DeadlineIn(kLongMs)).ok());
  }
  first.client.Leave({});
  rank.client.Leave({});
  EXPECT_THAT(Await(second.abort).message(),
              HasSubstr("server 1 failed: it did not leave within 1 ms after the last rank"));
  const LaunchOutcome outcome = run.Finish().Outcome();
  EXPECT_EQ(outcome.status.rank(), ServerId(1));
  EXPECT_EQ(outcome.exit_code, 202);
}

// What is said to one that says `hello` over the network; the run has one rank and two servers.
std::string RefusalOf(Message hello, bool server_1_is_there = false) {
  Supervisor::Settings settings = SocketRun::SettingsOf({1, 2, true}, kLongMs);
  settings.ranks_may_connect = false;
  SocketRun run(std::move(settings));
  const auto listener = ListenAt(*ParseEndpoint("unix:engine-test-" + std::to_string(getpid())));
  EXPECT_TRUE(listener.ok()) << listener.status().message();
  run.supervisor().server().Listen(base::UniqueFd(dup(listener->get())));
  SocketRank rank(run.Connect(), 0, 1);
  std::optional<SocketRank> server;
  if (server_1_is_there) {
    server.emplace(run.Connect(), ServerId(1), 1);
    while (!run.supervisor().HasJoined(ServerId(1))) run.supervisor().server().Handle();
  }
  run.Start();
  base::AbortSignal cancel;
  const auto socket = ConnectTo(*ParseEndpoint("unix:engine-test-" + std::to_string(getpid())),
                                base::DeadlineIn(kLongMs), cancel);
  EXPECT_TRUE(socket.ok()) << socket.status().message();
  const std::string bytes = Encode(hello);
  EXPECT_EQ(send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  char buffer[4096];
  const ssize_t size = recv(socket->get(), buffer, sizeof(buffer), 0);
  MessageReader reader;
  reader.Append(buffer, size < 0 ? 0 : static_cast<size_t>(size));
  Message message;
  EXPECT_TRUE(*reader.Next(&message));
  EXPECT_EQ(message.kind, MessageKind::kRefused);
  EXPECT_THAT(run.Notices(1)[0], HasSubstr(message.value));
  EXPECT_FALSE(rank.abort.raised()) << "a pending connection ended the run";
  return message.value;
}

TEST(Servers, TheWrongOnesAreRefusedAndEndNothing) {
  const auto hello = [](int member, uint32_t version = kProtocolVersion) {
    return Message{MessageKind::kHello, version, member, 0, "", ""};
  };
  EXPECT_EQ(RefusalOf(hello(ServerId(2))),
            "there is no server 2 in a run with 2 servers: --index goes from 0 to 1");
  EXPECT_THAT(RefusalOf(hello(ServerId(0), 9)), HasSubstr("server 0 speaks version 9"));
  EXPECT_EQ(RefusalOf(hello(ServerId(1)), true),
            "two processes say that they are server 1: give every server its own --index");
  EXPECT_THAT(RefusalOf({MessageKind::kHello, kProtocolVersion, 0, 1, "job", ""}),
              HasSubstr("only servers may join"));
}

TEST(Servers, ARunWithoutThemSaysSo) {
  SocketRun run(1);
  SocketRank rank(run.Connect(), 0, 1);
  run.Start();
  ASSERT_TRUE(rank.client.Join(base::DeadlineIn(kLongMs)).ok());
  run.Finish();
  EXPECT_STREQ(run.supervisor()
                   .OnHello({MessageKind::kHello, kProtocolVersion, ServerId(0), 0, "", ""}, false)
                   .message(),
               "the run at the test has no servers: start it with --servers");
}

// A run whose one server joins through a listener and must know the key.
class GuardedRun : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = ServerKey::LoadOrCreate(folder_ / "key");
    auto other = ServerKey::LoadOrCreate(folder_ / "other");
    ASSERT_TRUE(made.ok() && other.ok());
    key_ = *made;
    other_ = *other;
    const Endpoint endpoint = *ParseEndpoint("unix:engine-guard-" + std::to_string(getpid()));
    auto listener = ListenAt(endpoint);
    ASSERT_TRUE(listener.ok()) << listener.status().message();
    run_.supervisor().server().Listen(std::move(*listener));
    run_.supervisor().server().RequireProof(key_.value());
    rank_.emplace(run_.Connect(), 0, 1);
    run_.Start();
  }

  base::UniqueFd Connect() {
    base::AbortSignal cancel;
    auto socket = ConnectTo(*ParseEndpoint("unix:engine-guard-" + std::to_string(getpid())),
                            base::DeadlineIn(kLongMs), cancel);
    EXPECT_TRUE(socket.ok());
    return std::move(*socket);
  }
  Status JoinWith(const std::optional<ServerKey>& key) {
    SocketRank server(Connect(), ServerId(0), 0, "", key);
    const Status status = server.client.Join(base::DeadlineIn(kLongMs));
    server.client.Leave(status);
    return status;
  }

  engine::testing::TempFolder folder_;
  std::optional<ServerKey> key_, other_;
  SocketRun run_{SocketRun::SettingsOf({1, 1, false}, kLongMs)};
  std::optional<SocketRank> rank_;
};

TEST_F(GuardedRun, AdmitsWhoKnowsTheKey) {
  EXPECT_TRUE(JoinWith(key_).ok());
  EXPECT_TRUE(rank_->client.Join(base::DeadlineIn(kLongMs)).ok());
}

TEST_F(GuardedRun, RefusesAnotherKeyAndNone) {
  const Status wrong = JoinWith(other_);
  EXPECT_EQ(wrong.code(), StatusCode::kRendezvous);
  EXPECT_THAT(wrong.message(), HasSubstr("does not know the key of this run"));
  const Status none = JoinWith({});
  EXPECT_EQ(none.code(), StatusCode::kRendezvous);
  EXPECT_THAT(none.message(), HasSubstr("asks for a key: give that of the run with --key-file"));
  EXPECT_THAT(run_.Notices(1)[0], HasSubstr("refused a connection from a process of this host"));
  EXPECT_TRUE(JoinWith(key_).ok()) << "the place is still free";
}

// The answer to one challenge is none to another.
TEST_F(GuardedRun, AReplayedProofIsRefused) {
  const auto read = [](const base::UniqueFd& socket) {
    char buffer[4096];
    const ssize_t size = recv(socket.get(), buffer, sizeof(buffer), 0);
    MessageReader reader;
    reader.Append(buffer, size < 0 ? 0 : static_cast<size_t>(size));
    Message message;
    EXPECT_TRUE(*reader.Next(&message));
    return message;
  };
  const auto say = [](const base::UniqueFd& socket, const Message& message) {
    const std::string bytes = Encode(message);
    EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  };
  const Message hello{MessageKind::kHello, kProtocolVersion, ServerId(0), 0, "", ""};
  const base::UniqueFd first = Connect(), second = Connect();
  say(first, hello);
  const Message challenge = read(first);
  ASSERT_EQ(challenge.kind, MessageKind::kChallenge);
  Message proof;
  proof.kind = MessageKind::kProof;
  const std::string nonce = ServerKey::MakeNonce();
  proof.key = nonce + key_->Prove(ServerKey::Side::kMember, challenge.key, nonce, ServerId(0));
  say(second, hello);
  EXPECT_EQ(read(second).kind, MessageKind::kChallenge);
  say(second, proof);
  EXPECT_EQ(read(second).kind, MessageKind::kRefused);
  say(first, proof);
  EXPECT_EQ(read(first).kind, MessageKind::kProof);
}

// Whoever listens in the place of the run gets no server that was given a key.
TEST(Servers, AStoreThatDoesNotKnowTheKeyIsRefused) {
  engine::testing::TempFolder folder;
  const auto key = ServerKey::LoadOrCreate(folder / "key");
  ASSERT_TRUE(key.ok());
  SocketRun run(SocketRun::SettingsOf({1, 1, true}, kLongMs));
  SocketRank rank(run.Connect(), 0, 1);
  SocketRank server(run.Connect(), ServerId(0), 0, "", *key);
  run.Start();
  const Status status = server.client.Join(base::DeadlineIn(kLongMs));
  EXPECT_EQ(status.code(), StatusCode::kRendezvous);
  EXPECT_THAT(status.message(), HasSubstr("does not know the key"));
}

TEST(ServersInThreads, RunBesideTheRanks) {
  LaunchPlan plan;
  plan.mode = LaunchPlan::Mode::kThreads;
  plan.info = {.world_size = 3, .servers = 2};
  std::mutex mutex;
  std::multiset<std::pair<bool, int>> seen;
  const LaunchOutcome outcome = Launch(plan, {}, [&](base::RankContext& context) -> Status {
    EXPECT_EQ(context.info.world_size, 3);
    EXPECT_EQ(context.info.servers, 2);
    EXPECT_EQ(context.info.one_host, 1u);
    {
      const std::lock_guard lock(mutex);
      seen.emplace(context.info.is_server != 0, context.info.rank);
    }
    if (context.info.is_server == 0) return {};
    return context.store.Get(kRanksLeftKey, kLongMs).status();
  });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(seen, (std::multiset<std::pair<bool, int>>{
                      {false, 0}, {false, 1}, {false, 2}, {true, 0}, {true, 1}}));
}

TEST(ServersInThreads, DoNotStopBeforeTheRanks) {
  LaunchPlan plan;
  plan.mode = LaunchPlan::Mode::kThreads;
  plan.info = {.world_size = 1, .servers = 1};
  const LaunchOutcome outcome = Launch(plan, {}, [&](base::RankContext& context) -> Status {
    if (context.info.is_server != 0) {
      const Status left = context.store.Get(kRanksLeftKey, kLongMs).status();
      EXPECT_EQ(context.stop_requested, 0);
      return left;
    }
    kill(getpid(), SIGTERM);
    while (context.stop_requested == 0) std::this_thread::yield();
    return Status::Error(StatusCode::kInterrupted, "stopped after step 1");
  });
  EXPECT_EQ(outcome.exit_code, 143);
}

}  // namespace
}  // namespace engine::launch
