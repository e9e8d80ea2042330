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

using ::testing::AllOf;
using ::testing::HasSubstr;

// A run of two ranks; rank 0 has a socket of its own, and the other comes over TCP.
class JoinTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Port 0 is no valid rendezvous, but the kernel then picks a free one.
    kit::UniqueFd listener = ValueOf(ListenAt({"127.0.0.1:0", "127.0.0.1", "0", ""}));
    socklen_t size = sizeof(address_);
    ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address_), &size), 0);
    run_.supervisor().server().Listen(std::move(listener));
  }

  kit::UniqueFd Connect(const char* from = "127.0.0.1") {
    kit::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit{.tv_sec = kLongMs / 1000, .tv_usec = 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in source{};
    source.sin_family = AF_INET;
    inet_pton(AF_INET, from, &source.sin_addr);
    EXPECT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&source), sizeof(source)), 0);
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    return socket;
  }
  // What is answered to `hello`; the connection is closed after it.
  Message Ask(const Message& hello) {
    const kit::UniqueFd socket = Connect();
    SendRaw(socket, Encode(hello));
    return ReadMessage(socket);
  }
  // The outcome when all have left.
  LaunchOutcome Leave(SocketRank& first, SocketRank& second) {
    first.client.Leave({});
    second.client.Leave({});
    return run_.Finish().Outcome();
  }

  sockaddr_in address_{};
  SocketRun run_{2};
  SocketRank first_{run_.Connect(), 0, 2};
};

class KeyedJoin : public JoinTest {
 protected:
  void SetUp() override {
    JoinTest::SetUp();
    run_.supervisor().server().RequireProof(key_);
    run_.Start();
  }
  Status JoinWith(const std::optional<ServerKey>& key, int world_size = 2) {
    SocketRank rank(Connect(), 1, world_size, "job", key);
    const Status status = rank.Join();
    rank.client.Leave(status);
    return status;
  }

  engine::testing::TempFolder folder_;
  const ServerKey key_ = ValueOf(ServerKey::LoadOrCreate(folder_ / "key"));
  const ServerKey other_ = ValueOf(ServerKey::LoadOrCreate(folder_ / "other"));
};

TEST_F(KeyedJoin, ARankWithoutTheKeyIsRefusedAndDisturbsNothing) {
  EXPECT_THAT(JoinWith({}), FailsWith(StatusCode::kRendezvous, HasSubstr("asks for a key")));
  EXPECT_THAT(JoinWith(other_),
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
  SocketRank second(Connect(), 1, 2, "job", key_);
  ASSERT_THAT(second.Join(), IsOk());
  ASSERT_THAT(first_.Join(), IsOk());
  EXPECT_EQ(Leave(first_, second).exit_code, 0);
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
      const auto kind = static_cast<MessageKind>(1 + random() % 18);
      const bool hello = frames > 1 || kind == MessageKind::kHello;
      const uint32_t id = hello ? kProtocolVersion : random() % 9;
      said += Encode({hello ? MessageKind::kHello : kind, id, number(), number(), "job", ""});
    }
    if (random() % 4 == 0) said[random() % said.size()] = static_cast<char>(random());
    open.push_back(Connect());
    SendRaw(open.back(), said);
    if (random() % 2 == 0) open.pop_back();
  }
  SocketRank second(Connect(), 1, 2, "job", key_);
  ASSERT_THAT(second.Join(), IsOk());
  ASSERT_THAT(first_.Join(), IsOk());
  EXPECT_EQ(Leave(first_, second).exit_code, 0);
}

TEST_F(JoinTest, ARankOfAnotherSizeIsToldAndEndsNothing) {
  run_.Start();
  EXPECT_THAT(Ask(Hello(1, 4)).value, HasSubstr("rank 1 was started as one of 4 ranks"));
  EXPECT_THAT(Ask(Hello(9, 2)).value, HasSubstr("there is no rank 9"));
  EXPECT_THAT(run_.Notices(1)[0], AllOf(HasSubstr("refused a connection from 127.0.0.1:"),
                                        HasSubstr("one of 4 ranks")));
  SocketRank second(Connect(), 1, 2);
  ASSERT_THAT(second.Join(), IsOk());
  EXPECT_EQ(Leave(first_, second).exit_code, 0);
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
  run_.Start();
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
  run_.Start();
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
  run_.Start();
  EXPECT_THAT(Ask(Hello(0, 2)).value, HasSubstr("two processes say that they are rank 0"));
  EXPECT_THAT(Await(first_.abort).message(), HasSubstr("two processes say that they are rank 0"));
}

TEST_F(JoinTest, WantOfDescriptorsIsNamed) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const kit::UniqueFd socket = Connect();  // waits to be accepted
  const kit::UniqueFd highest(dup(socket.get()));
  rlimit few = limit;
  few.rlim_cur = static_cast<rlim_t>(highest.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  run_.supervisor().server().Handle();
  // The address comes from files of the host, when there is a descriptor for them.
  EXPECT_THAT(ListenAt(*ParseEndpoint("unix:engine-test")),
              FailsWith(StatusCode::kResourceExhausted, HasSubstr("ulimit -n")));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const LaunchOutcome outcome = run_.Finish().Outcome();
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
