// Who may join a run through its listener: ranks that prove the key, and nobody else.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <random>

#include "app/launch/endpoint.h"
#include "app/launch/launch.h"
#include "tests/support/expect_status.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/launch/socket_run.h"

namespace engine::launch {
namespace {

// Members come over TCP, but for rank 0, which has a socket of its own.
class NetworkRun : public SocketRun {
 public:
  explicit NetworkRun(Supervisor::Settings settings, const std::optional<ServerKey>& key = {})
      : SocketRun(std::move(settings)) {
    // Port 0 is no valid rendezvous, but the kernel then picks a free one.
    kit::UniqueFd listener = ValueOf(ListenAt({"127.0.0.1:0", "127.0.0.1", "0", ""}));
    socklen_t size = sizeof(address_);
    EXPECT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address_), &size), 0);
    supervisor().server().Listen({std::move(listener), key});
  }

  kit::UniqueFd ConnectFrom(const char* from = "127.0.0.1") const {
    kit::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit{.tv_sec = kLongMs / 1000, .tv_usec = 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in source{};
    source.sin_family = AF_INET;
    inet_pton(AF_INET, from, &source.sin_addr);
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&source), sizeof(source)), 0);
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof(address_)),
              0);
    return socket;
  }
  // What is answered to `hello`; the connection is closed after it.
  Message Ask(const Message& hello) const {
    const kit::UniqueFd socket = ConnectFrom();
    SendRaw(socket, Encode(hello));
    return ReadMessage(socket);
  }

 private:
  sockaddr_in address_{};
};

// Two ranks.
class JoinTest : public ::testing::Test {
 protected:
  explicit JoinTest(const std::optional<ServerKey>& key = {})
      : run_(SocketRun::SettingsOf({2, 0, true}, kLongMs), key) {}
  void SetUp() override { run_.Start(); }

  kit::UniqueFd Connect(const char* from = "127.0.0.1") { return run_.ConnectFrom(from); }
  Message Ask(const Message& hello) { return run_.Ask(hello); }
  // The second rank joins, all leave, and nothing was wrong.
  void ExpectTheRestGoesWell(const std::optional<ServerKey>& key = {}) {
    SocketRank second(Connect(), 1, 2, "job", key);
    ASSERT_THAT(second.Join(), IsOk());
    ASSERT_THAT(first_.Join(), IsOk());
    first_.client.Leave({});
    second.client.Leave({});
    EXPECT_EQ(run_.Finish().Outcome().exit_code, 0);
  }

  NetworkRun run_;
  SocketRank first_{run_.Connect(), 0, 2};
};

ServerKey MakeKey() {
  const engine::test::TempFolder folder;
  return ValueOf(ServerKey::LoadOrCreate(folder / "key"));
}

class KeyedJoin : public JoinTest {
 protected:
  explicit KeyedJoin(const ServerKey& key = MakeKey()) : JoinTest(key), key_(key) {}
  Status JoinWith(const std::optional<ServerKey>& key, int world_size = 2) {
    SocketRank rank(Connect(), 1, world_size, "job", key);
    const Status status = rank.Join();
    rank.client.Leave(status);
    return status;
  }

  const ServerKey key_;
};

TEST_F(KeyedJoin, ARankWithoutTheKeyIsRefusedAndDisturbsNothing) {
  EXPECT_THAT(JoinWith({}), FailsWith(StatusCode::kRendezvous, HasSubstr("asks for a key")));
  EXPECT_THAT(JoinWith(MakeKey()),
              FailsWith(StatusCode::kRendezvous, HasSubstr("does not know the key of this run")));
  EXPECT_THAT(JoinWith(key_, 3),
              FailsWith(StatusCode::kRendezvous, HasSubstr("rank 1 was started as one of 3 ranks")))
      << "one with the key is told what is wrong";
  // Nothing is said to others, true or not.
  for (const Message& hello : {Hello(0, 2), Hello(1, 2), Hello(1, 9), Hello(7, 2), Hello(-9, 2),
                               Hello(1, 2, kProtocolVersion, "another")}) {
    EXPECT_EQ(Ask(hello).kind, MessageKind::kChallenge);
  }
  EXPECT_EQ(Ask(Hello(1, 2, kProtocolVersion + 1)).kind, MessageKind::kRefused);
  EXPECT_FALSE(first_.abort.raised()) << first_.abort.reason().message();
  ExpectTheRestGoesWell(key_);
}

// The answer to one challenge is none to another.
TEST_F(KeyedJoin, AReplayedProofIsRefused) {
  const kit::UniqueFd first = Connect(), second = Connect();
  SendRaw(first, Encode(Hello(1, 2)));
  const Message challenge = ReadMessage(first);
  ASSERT_EQ(challenge.kind, MessageKind::kChallenge);
  const std::string nonce = ServerKey::MakeNonce();
  const std::string proof =
      Encode({.kind = MessageKind::kProof,
              .key = nonce + key_.Prove(ServerKey::Side::kMember, challenge.key, nonce, 1)});
  SendRaw(second, Encode(Hello(1, 2)));
  EXPECT_EQ(ReadMessage(second).kind, MessageKind::kChallenge);
  SendRaw(second, proof);
  EXPECT_EQ(ReadMessage(second).kind, MessageKind::kRefused);
  SendRaw(first, proof);
  EXPECT_EQ(ReadMessage(first).kind, MessageKind::kProof);
}

TEST_F(KeyedJoin, NothingThatIsSaidWithoutTheKeyEndsARun) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto number = [&] { return static_cast<int32_t>(random() % 6) - 2; };
  std::vector<kit::UniqueFd> open;
  for (int i = 0; i < 120; ++i) {
    std::string said;
    for (int frames = static_cast<int>(random() % 4); frames >= 0; --frames) {
      const auto kind = static_cast<MessageKind>(1 + random() % 16);
      const bool hello = frames > 1 || kind == MessageKind::kHello;
      const uint32_t id = hello ? kProtocolVersion : random() % 9;
      said += Encode({hello ? MessageKind::kHello : kind, id, number(), number(), "job", ""});
    }
    if (random() % 4 == 0) said[random() % said.size()] = static_cast<char>(random());
    open.push_back(Connect());
    SendRaw(open.back(), said);
    if (random() % 2 == 0) open.pop_back();
  }
  ExpectTheRestGoesWell(key_);
  EXPECT_LT(run_.Notices(1).size(), 20u) << "others fill the log";
}

TEST_F(JoinTest, ARankOfAnotherSizeIsToldAndEndsNothing) {
  EXPECT_THAT(Ask(Hello(1, 4)).value, HasSubstr("rank 1 was started as one of 4 ranks"));
  EXPECT_THAT(Ask(Hello(9, 2)).value, HasSubstr("there is no rank 9"));
  EXPECT_EQ(Ask(Hello(ServerId(0))).value,
            "the run at the test has no servers: start it with --servers");
  EXPECT_THAT(run_.Notices(1)[0], AllOf(HasSubstr("refused a connection from 127.0.0.1:"),
                                        HasSubstr("one of 4 ranks")));
  ExpectTheRestGoesWell();
}

// A run of one rank, which it starts itself, and two servers, of which the second is there.
TEST(Join, OnlyTheServersThatAreMissingMayCome) {
  Supervisor::Settings settings = SocketRun::SettingsOf({1, 2, true}, kLongMs);
  settings.ranks_may_connect = false;
  NetworkRun run(std::move(settings));
  SocketRank rank(run.Connect(), 0, 1), server(run.Connect(), ServerId(1), 1);
  while (!run.supervisor().members().HasJoined(ServerId(1))) run.supervisor().Step(5);
  run.Start();
  EXPECT_EQ(run.Ask(Hello(ServerId(2))).value,
            "there is no server 2 in a run with 2 servers: --index goes from 0 to 1");
  EXPECT_THAT(run.Ask(Hello(ServerId(0), 0, 9)).value, HasSubstr("server 0 speaks version 9"));
  EXPECT_EQ(run.Ask(Hello(ServerId(1))).value,
            "two processes say that they are server 1 of the run at the test: give every server "
            "its own --index");
  EXPECT_THAT(run.Ask(Hello(0, 1)).value, HasSubstr("only servers may join"));
  EXPECT_FALSE(rank.abort.raised()) << "a pending connection ended the run";
}

TEST(Join, WhoWasRefusedIsNamedWithThoseThatAreMissing) {
  SocketRun run(2, 300);
  SocketRank first(run.Connect(), 0, 2);
  run.supervisor().OnRefusedConnection("10.0.0.7:4242", "rank 1 was started as one of 4 ranks");
  run.Start();
  EXPECT_THAT(first.Join().message(),
              AllOf(HasSubstr("rank 1 did not join at"),
                    HasSubstr("the last one refused was 10.0.0.7:4242: rank 1 was")));
}

// More idle connections than there are slots: the host that has most of them makes room.
TEST_F(JoinTest, IdleConnectionsKeepNobodyOut) {
  const kit::UniqueFd patient = Connect("127.0.0.2");  // the first to come, and silent for a while
  std::vector<kit::UniqueFd> idle;
  for (int i = 0; i < 260; ++i) idle.push_back(Connect());
  EXPECT_THAT(run_.Notices(1)[0], AllOf(HasSubstr("refused a connection from 127.0.0.1:"),
                                        HasSubstr("did not say in time who it is")));
  SendRaw(patient, Encode(Hello(1, 2)));
  EXPECT_EQ(ReadMessage(patient).kind, MessageKind::kWelcome);
  EXPECT_THAT(first_.Join(), IsOk());
}

// A second process of one rank, while the ranks meet or just after: they may be of two runs.
TEST_F(JoinTest, TwoRunsAtOneAddressDoNotMerge) {
  SocketRank second(Connect(), 1, 2);
  ASSERT_THAT(first_.Join(), IsOk());
  EXPECT_EQ(Ask(Hello(1, 2, kProtocolVersion, "another run")).kind, MessageKind::kRefused);
  EXPECT_FALSE(first_.abort.raised()) << "the other run has another name";
  EXPECT_THAT(Ask(Hello(1, 2)).value, HasSubstr("two processes say that they are rank 1"));
  for (SocketRank* rank : {&first_, &second}) {
    EXPECT_THAT(Await(rank->abort).message(), HasSubstr("an address or a run id of its own"));
  }
  EXPECT_EQ(run_.Finish().Outcome().exit_code, 201);
}

TEST_F(JoinTest, AnotherRankZeroShowsTwoRuns) {
  EXPECT_THAT(Ask(Hello(0, 2)).value, HasSubstr("two processes say that they are rank 0"));
  EXPECT_THAT(Await(first_.abort).message(), HasSubstr("two processes say that they are rank 0"));
}

TEST(Join, WantOfDescriptorsIsNamed) {
  NetworkRun run(SocketRun::SettingsOf({2, 0, true}, kLongMs));
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const kit::UniqueFd socket = run.ConnectFrom();  // waits to be accepted
  const kit::UniqueFd highest(dup(socket.get()));
  rlimit few = limit;
  few.rlim_cur = static_cast<rlim_t>(highest.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  run.supervisor().server().Handle();
  // The address comes from files of the host, when there is a descriptor for them.
  EXPECT_THAT(ListenAt(*ParseEndpoint("unix:engine-test")),
              FailsWith(StatusCode::kResourceExhausted, HasSubstr("ulimit -n")));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const LaunchOutcome outcome = run.Finish().Outcome();
  EXPECT_EQ(outcome.exit_code, 203);
  EXPECT_THAT(outcome.status.message(),
              HasSubstr("no descriptor is left to let another member in"));
}

// Where others could come nothing listens, and nothing connects, unless it is said who may join.
TEST(Access, OffLoopbackTakesAKeyOrAWord) {
  LaunchPlan plan{.mode = LaunchPlan::Mode::kJoin,
                  .info = {.world_size = 2, .local_world_size = 1},
                  .rendezvous = "192.0.2.250:29500"};  // of documentation: no host has it
  const auto launch = [&] {
    return Launch(plan, {.rendezvous_timeout_ms = 10},
                  [](base::RankContext&) -> Status { return {}; });
  };
  for (const int rank : {0, 1}) {
    plan.info.rank = rank;
    const LaunchOutcome refused = launch();
    EXPECT_EQ(refused.exit_code, 79);
    EXPECT_THAT(refused.status.message(),
                AllOf(HasSubstr("--key-file FILE"), HasSubstr("--insecure")));
  }
  plan.insecure = true;
  EXPECT_EQ(launch().exit_code, 201) << "tried, and nobody is there";
  plan.insecure = false;
  plan.info = {.world_size = 1};
  EXPECT_EQ(launch().exit_code, 0) << "there is nobody to meet";
  LaunchPlan spawn{.info = {.world_size = 1, .servers = 1}, .serve_at = "192.0.2.250:29500"};
  EXPECT_EQ(Launch(spawn, {}, [](base::RankContext&) -> Status { return {}; }).exit_code, 79);
}

// A server that reads nothing holds up no thread of the member (its replies and posts do).
TEST(Outbox, NothingWaitsForAServerThatIsStopped) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const kit::UniqueFd server(pair[0]);
  SocketRank rank(kit::UniqueFd(pair[1]), 1, 2);
  const std::string text(1 << 20, 'x');
  constexpr int kPosts = 20;  // far more than the socket takes
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kPosts; ++i) ASSERT_THAT(rank.client.Post(text), IsOk());
  EXPECT_THAT(rank.client.Get("k", 20), FailsWith(StatusCode::kTimeout));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "it waited";
  // When the server goes on, all of it comes, in order, also if the server has spoken before.
  SendRaw(server, Encode({.kind = MessageKind::kStop, .number = 15}));
  while (rank.stop == 0) std::this_thread::yield();
  const timeval limit{.tv_sec = kLongMs / 1000, .tv_usec = 0};
  setsockopt(server.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  MessageReader reader;
  std::vector<char> buffer(1 << 16);
  std::vector<MessageKind> kinds;
  while (kinds.size() < kPosts + 3) {
    const ssize_t size = recv(server.get(), buffer.data(), buffer.size(), 0);
    ASSERT_GT(size, 0);
    reader.Append(buffer.data(), static_cast<size_t>(size));
    Message message;
    while (ValueOf(reader.Next(&message))) kinds.push_back(message.kind);
  }
  std::vector<MessageKind> expected(kPosts + 1, MessageKind::kPost);
  expected.front() = MessageKind::kHello;
  expected.insert(expected.end(), {MessageKind::kGet, MessageKind::kCancel});
  EXPECT_EQ(kinds, expected);
}

TEST(Outbox, IsBounded) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const kit::UniqueFd server(pair[0]);
  SocketRank rank(kit::UniqueFd(pair[1]), 1, 2);
  const std::string text(kMaxValueBytes / 4, 'x');
  Status status;
  for (int i = 0; i < 6 && status.ok(); ++i) status = rank.client.Post(text);
  EXPECT_THAT(status, FailsWith(StatusCode::kTimeout, HasSubstr("takes no more data")));
}

}  // namespace
}  // namespace engine::launch
