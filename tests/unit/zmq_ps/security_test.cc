// Peers that are not of the run: they cost a line in the log, and the run goes on.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <atomic>
#include <random>

#include "breaking_proxy.h"
#include "cluster.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

// A plain TCP connection to "tcp://127.0.0.1:port".
class RawConnection {
 public:
  explicit RawConnection(const std::string& endpoint) : fd_(ConnectTo(PortOf(endpoint))) {}

  bool connected() const { return static_cast<bool>(fd_); }
  bool Send(const std::string& bytes) {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Whether the other side closes within five seconds.
  bool IsClosed() {
    timeval timeout{.tv_sec = 5, .tv_usec = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    char buffer[256];
    ssize_t got = 0;
    do got = recv(fd_.get(), buffer, sizeof(buffer), 0);
    while (got > 0);
    return got == 0 || errno == ECONNRESET;
  }

 private:
  const kit::UniqueFd fd_;
};

// ZMTP 3.0 greeting with the mechanism NULL, as a ZeroMQ client sends it (rfc.zeromq.org/spec/23).
std::string Greeting() {
  std::string greeting("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);
  greeting.resize(64, '\0');
  return greeting;
}

// The command that ends the handshake of the mechanism NULL.
std::string Ready() {
  const std::string body(
      "\x05READY\x0bSocket-Type\0\0\0\x06"
      "DEALER",
      6 + 12 + 4 + 6);
  return std::string("\x04", 1) + static_cast<char>(body.size()) + body;
}

// One all-reduce of all workers.
void ExpectThatItWorks(Cluster& cluster, uint32_t workers, uint64_t key) {
  RunWorkers(workers, [&](uint32_t worker) {
    std::vector<float> data(50000, 1.0f);
    const Status status =
        cluster.Run(worker, {.send = data.data(), .recv = data.data(), .count = 50000, .key = key});
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(data, std::vector<float>(data.size(), static_cast<float>(workers)));
  });
}

// Lines come once a second at most, so one may take that long.
bool WaitForLog(const Cluster& cluster, size_t lines) {
  for (int i = 0; i < 500 && cluster.log().size() < lines; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return cluster.log().size() >= lines;
}

TEST(Security, PlainTextOffLoopbackRefusesToStart) {
  for (const char* endpoint : {"tcp://0.0.0.0:*", "tcp://192.0.2.1:5000", "tcp://*:*"}) {
    const auto server = Server::Start({.endpoint = endpoint});
    ASSERT_FALSE(server.ok());
    EXPECT_EQ(server.status().code(), StatusCode::kConfig);
    EXPECT_THAT(server.status().message(), ::testing::HasSubstr("plain text"));
  }
  const auto worker = Worker::Connect(
      {.servers = {{.endpoint = "tcp://192.0.2.1:5000", .member = 0}}}, Clock::now());
  ASSERT_FALSE(worker.ok());
  EXPECT_EQ(worker.status().code(), StatusCode::kConfig);
}

// A key of the run is one of its own rank only, and any other is none: it is refused, and that is
// said.
TEST(Security, AKeyIsThatOfItsRank) {
  const KeyPair first = *KeyPair::Make(), second = *KeyPair::Make();
  for (const KeyPair& server_keys : {KeyPair(), *KeyPair::Make()}) {
    SCOPED_TRACE(server_keys.secret_key.empty() ? "plain" : "encrypted");
    std::atomic<int> lines{0};
    const auto server = Server::Start({.endpoint = "tcp://127.0.0.1:*",
                                       .secret_key = server_keys.secret_key,
                                       .worker_keys = {first.public_key, second.public_key},
                                       .log = [&](std::string_view) { ++lines; }});
    ASSERT_TRUE(server.ok()) << server.status().message();
    const auto connect = [&](const KeyPair& keys, int64_t timeout_ms) {
      const ServerAddress address{(*server)->endpoint(), server_keys.public_key, 0};
      return Worker::Connect({.world_size = 2, .keys = keys, .servers = {address}},
                             kit::DeadlineIn(timeout_ms))
          .status();
    };
    EXPECT_EQ(connect(*KeyPair::Make(), 3000).code(), StatusCode::kRendezvous);
    EXPECT_EQ(connect(second, 300).code(), StatusCode::kRendezvous);
    EXPECT_TRUE(connect(first, 9000).ok());
    EXPECT_GT(lines, 0);
  }
}

class Outsiders : public ::testing::TestWithParam<bool> {};

TEST_P(Outsiders, GarbageCostsALine) {
  const unsigned seed = 99;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Cluster cluster({.workers = 2, .servers = 1, .encrypt = GetParam()});
  ASSERT_TRUE(cluster.ok());
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) {
    RawConnection outsider(cluster.server(0).endpoint());
    ASSERT_TRUE(outsider.connected());
    std::string bytes(1 + random() % 3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    outsider.Send(i % 2 ? Greeting() + bytes : bytes);
  }
  ExpectThatItWorks(cluster, 2, 1);
  EXPECT_TRUE(WaitForLog(cluster, 1));
  EXPECT_LT(cluster.log().size(), 10u) << "a flood of connections floods the log";
}

// Two descriptors each: server and outsider are in this process.
void AllowDescriptors(rlim_t count) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_cur >= count) return;
  ASSERT_GE(limit.rlim_max, count) << "raise the hard limit of descriptors (ulimit -Hn)";
  limit.rlim_cur = count;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_P(Outsiders, AThousandSilentConnectionsDoNotHinder) {
  ASSERT_NO_FATAL_FAILURE(AllowDescriptors(2500));
  Cluster cluster({.workers = 2, .servers = 1, .encrypt = GetParam()});
  ASSERT_TRUE(cluster.ok());
  std::vector<std::unique_ptr<RawConnection>> outsiders;
  for (int i = 0; i < 1000; ++i) {
    outsiders.push_back(std::make_unique<RawConnection>(cluster.server(0).endpoint()));
    ASSERT_TRUE(outsiders.back()->connected()) << i;
  }
  ExpectThatItWorks(cluster, 2, 1);
  outsiders.clear();
  EXPECT_TRUE(WaitForLog(cluster, 1));
  ExpectThatItWorks(cluster, 2, 2);
}

INSTANTIATE_TEST_SUITE_P(Modes, Outsiders, ::testing::Bool(), [](const auto& mode) {
  return std::string(mode.param ? "encrypted" : "plain");
});

// What a peer without a key may send: a frame that says it is 2^62 bytes long, before or after its
// handshake, and frames of a message that never ends.
TEST(Security, NothingOfOthersIsStored) {
  Cluster cluster({.workers = 2, .servers = 1});
  ASSERT_TRUE(cluster.ok());
  const std::string bomb("\x02\x40\0\0\0\0\0\0\0", 9);
  const std::string part = std::string("\x03\0\0\0\0\0\0\x80\0", 9) + std::string(1 << 15, 'x');
  for (const std::string& first :
       {Greeting() + bomb, Greeting() + Ready() + bomb, Greeting() + Ready()}) {
    RawConnection outsider(cluster.server(0).endpoint());
    ASSERT_TRUE(outsider.connected());
    ASSERT_TRUE(outsider.Send(first));
    int parts = 0;
    while (parts < 4000 && outsider.Send(part)) ++parts;
    EXPECT_LT(parts, 4000) << "128 MiB were taken";
    EXPECT_TRUE(outsider.IsClosed());
  }
  EXPECT_TRUE(WaitForLog(cluster, 1));
  ExpectThatItWorks(cluster, 2, 1);
}

// A rank that has proven its key, of another build or broken: it is told, and need not wait for a
// deadline.
TEST(Security, WhatARankSendsWrongIsRefused) {
  const KeyPair keys = *KeyPair::Make();
  const auto server =
      Server::Start({.endpoint = "tcp://127.0.0.1:*", .worker_keys = {keys.public_key}});
  ASSERT_TRUE(server.ok()) << server.status().message();
  Header push{.kind = MessageKind::kPush, .request = 1, .key = 5, .round = 1};
  push.spec.count = push.spec.total = 100;
  Header other_build = push;
  other_build.version = 0;
  for (const auto& [header, what] : {std::pair(push, "more or less data than it says"),
                                     std::pair(other_build, "another version")}) {
    ::zmq::context_t context;
    DealerLink rank(context, 0, (*server)->endpoint(), "", keys, {});
    Message message{.header = Encode(header), .body = ::zmq::message_t(4)};
    const auto deadline = kit::DeadlineIn(10000);
    while (!rank.Send(message) && Clock::now() < deadline) std::this_thread::yield();
    while (!rank.Receive(&message) && Clock::now() < deadline) std::this_thread::yield();
    Header answer;
    ASSERT_EQ(Decode(message.header, &answer), nullptr);
    EXPECT_EQ(answer.kind, MessageKind::kRefusal);
    const Status refusal = StatusOf(answer, message.body);
    EXPECT_EQ(refusal.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refusal.message(), ::testing::HasSubstr(what));
  }
}

}  // namespace
}  // namespace engine::zmq_ps
