// What the plugins over TCP promise beyond the contract of communicators.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "kit/deadline.h"
#include "plugins/tcp/wire.h"
#include "plugins/tcp_kit/handshake.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_folder.h"
#include "tools/conform/communicator/communicator_rig.h"

namespace engine::test {
namespace {

constexpr char kLibrary[] = ENGINE_TEST_PLUGIN_DIR "/libengine_tcp.so";

// What tcp and gloo have in common.
class OverTcp : public ::testing::TestWithParam<std::string> {};

constexpr Transfer kBarrier{.kind = TransferKind::kBarrier};

// The connected TCP sockets of this process.
std::vector<int> Connections() {
  std::vector<int> fds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_storage name{};
    socklen_t length = sizeof(name);
    const bool connected = getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0;
    if (connected && (name.ss_family == AF_INET || name.ss_family == AF_INET6)) fds.push_back(fd);
  }
  return fds;
}

TEST(TcpNetwork, KnowsWhenATransferStarted) {
  for (int size = 1; size <= 3; ++size) {
    World world(kLibrary, size);
    RunRanks(size, [&](int rank) {
      TransferBuffers buffers({.count = 10}, rank, size);
      Work* const work = MustSubmit(world.rank(rank), buffers.MakeTransfer(0));
      EXPECT_TRUE(work->WaitHost(30000).ok());
      EXPECT_NE(work->started_ns(), 0);
      work->Release();
    });
  }
}

// One rank sees it, the other hears of it: both say what each of them submitted.
TEST_P(OverTcp, AMismatchNamesBothSides) {
  World world(GetParam(), 2);
  RunRanks(2, [&](int rank) {
    TransferBuffers buffers({.count = rank == 0 ? 1000 : 1001}, rank, 2);
    Transfer transfer = buffers.MakeTransfer(0);
    transfer.bucket = rank == 0 ? 40 : 41;
    const Status status = SubmitAndWait(world.rank(rank), transfer);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("(bucket 40, sequence 0)"));
    EXPECT_THAT(status.message(), HasSubstr("(bucket 41, sequence 0)"));
  });
}

// Ranks that have lost count meet all the same.
TEST(TcpNetwork, AnotherSequenceIsAMismatchAndNotATimeout) {
  World world(kLibrary, 2);
  RunRanks(2, [&](int rank) {
    TransferBuffers buffers({.count = 10}, rank, 2);
    const Status status =
        SubmitAndWait(world.rank(rank), buffers.MakeTransfer(static_cast<uint64_t>(rank)));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("sequence 0"));
    EXPECT_THAT(status.message(), HasSubstr("sequence 1"));
  });
}

// Why no write blocks for good.
TEST(TcpNetwork, TheSendBufferTakesAWindowWhateverWasSentBefore) {
  World world(kLibrary, 3, {{"io_threads", "1"}});
  uint64_t sequence = 0;
  for (const int64_t count : {1, 2000, 20000, 300007}) {
    RunRanks(3, [&](int rank) {
      TransferBuffers buffers({.count = count}, rank, 3);
      EXPECT_TRUE(SubmitAndWait(world.rank(rank), buffers.MakeTransfer(sequence)).ok());
    });
    ++sequence;
    const std::vector<int> connections = Connections();
    EXPECT_GE(connections.size(), 6u);
    for (const int fd : connections) {
      int granted = 0;
      socklen_t length = sizeof(granted);
      ASSERT_EQ(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &granted, &length), 0);
      EXPECT_GE(granted, static_cast<int>(2 * tcp::kWindowBytes)) << "after " << count;
    }
  }
}

TEST(TcpNetwork, UsesTheCongestionControlThatIsAskedFor) {
  World world(kLibrary, 2, {{"congestion_control", "reno"}});  // which every Linux has
  EXPECT_TRUE(Connections().empty()) << "connections are made when they are needed";
  RunRanks(2, [&](int rank) { EXPECT_TRUE(SubmitAndWait(world.rank(rank), kBarrier).ok()); });
  const std::vector<int> connections = Connections();
  EXPECT_FALSE(connections.empty());
  for (const int fd : connections) {
    char name[16] = {};
    socklen_t length = sizeof(name);
    ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
    EXPECT_STREQ(name, "reno");
  }
}

TEST(TcpNetwork, AnUnknownCongestionControlIsAnErrorOfTheConfiguration) {
  const auto errors = World::CreationErrors(Must(PluginUnderTest::Load(kLibrary)), 2, 2, [](int) {
    return OptionValues::Overrides{{"congestion_control", "carrier_pigeon"}};
  });
  for (const Status& error : errors) {
    EXPECT_EQ(error.code(), StatusCode::kConfig) << error.message();
    EXPECT_THAT(error.message(), HasSubstr("'carrier_pigeon'"));
  }
}

// A connection from outside of the run to the port of a rank, as its record in the store has it.
int ConnectFromOutside(World& world, int rank) {
  std::string record;
  EXPECT_TRUE(
      StoreGetString(world.host(rank), "0/here/" + std::to_string(rank), 1000, &record).ok());
  char address[64] = {};
  unsigned short port = 0;
  EXPECT_EQ(std::sscanf(record.c_str(), "%63s %hu", address, &port), 2) << record;
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  inet_pton(AF_INET, address, &name.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  return fd;
}

// Those that say nothing, those that send something else, and a hello under another key. All of
// them come before the ranks have connected.
TEST_P(OverTcp, WhoHasNoKeyIsDroppedAndTheRanksStillConnect) {
  World world(GetParam(), 3);
  std::vector<int> silent, wrong;
  for (int i = 0; i < 300; ++i) silent.push_back(ConnectFromOutside(world, 0));
  for (int i = 0; i < 40; ++i) {
    tcp::Hello hello{.rank = 1, .lane = 0};
    if (i % 2 == 0) hello.magic = 0x20544547;
    wrong.push_back(ConnectFromOutside(world, i % 3));
    send(wrong.back(), &hello, sizeof(hello), MSG_NOSIGNAL);
  }
  RunRanks(3, [&](int rank) {
    for (uint64_t i = 0; i < 4; ++i) {
      TransferBuffers buffers({.count = 50000}, rank, 3);
      ExpectRight(world, rank, buffers, i);
    }
  });
  for (const int fd : wrong) {
    char byte = 0;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0) << "the connection is ended without an answer";
    close(fd);
  }
  for (const int fd : silent) close(fd);
}

TEST_P(OverTcp, RanksWithOneKeyFileMeet) {
  const engine::test::TempFolder folder;
  World world(GetParam(), 2, {{"key_file", folder.Write("key", std::string(32, 'k'))}});
  RunRanks(2, [&](int rank) { EXPECT_TRUE(SubmitAndWait(world.rank(rank), kBarrier).ok()); });
}

TEST_P(OverTcp, RanksWithDifferentKeyFilesDoNot) {
  const engine::test::TempFolder folder;
  const auto errors = [](const std::string& key, const std::string& other) {
    return World::CreationErrors(Must(PluginUnderTest::Load(GetParam())), 2, 2, [&](int rank) {
      return OptionValues::Overrides{{"key_file", rank == 0 ? key : other}};
    });
  };
  for (const Status& error : errors(folder.Write("short", "k"), folder / "none")) {
    EXPECT_EQ(error.code(), StatusCode::kMissingInput) << error.message();
  }
  const auto differ = errors(folder.Write("key", std::string(32, 'k')),
                             folder.Write("other", std::string(32, 'x')));
  for (int rank = 0; rank < 2; ++rank) {
    const Status& error = differ[static_cast<size_t>(rank)];
    EXPECT_EQ(error.code(), StatusCode::kConfig) << error.message();
    EXPECT_EQ(error.rank(), 1 - rank);
    EXPECT_THAT(error.message(), HasSubstr("key_file"));
  }
}

TEST(TcpNetwork, SpeaksIPv6) {
  const int probe = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  const bool usable =
      probe >= 0 && bind(probe, reinterpret_cast<sockaddr*>(&loopback), sizeof(loopback)) == 0;
  close(probe);
  if (!usable) GTEST_SKIP() << "this machine has no IPv6";
  World world(kLibrary, 2, {{"hostname", "::1"}});
  RunRanks(2, [&](int rank) { EXPECT_TRUE(SubmitAndWait(world.rank(rank), kBarrier).ok()); });
}

// Of connections that nobody needs there is none: a broadcast has two, to and from its root.
TEST(TcpNetwork, OnlyPairsThatATransferUsesAreConnected) {
  World world(kLibrary, 3, {{"io_threads", "1"}});
  RunRanks(3, [&](int rank) {
    TransferBuffers buffers({.kind = TransferKind::kBroadcast, .count = 10, .root = 1}, rank, 3);
    EXPECT_TRUE(SubmitAndWait(world.rank(rank), buffers.MakeTransfer(0)).ok());
  });
  EXPECT_EQ(Connections().size(), 4u) << "both ends are in this process";
}

// Paces connections of this process; without `all` the two ends of one of them.
void SlowDown(uint64_t bytes_per_second, bool all) {
  sockaddr_in first{};
  for (const int fd : Connections()) {
    sockaddr_in own{}, peer{};
    socklen_t length = sizeof(own);
    getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length);
    getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length);
    if (first.sin_port == 0) first = own;
    if (!all && own.sin_port != first.sin_port && peer.sin_port != first.sin_port) continue;
    EXPECT_EQ(
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_second, sizeof(bytes_per_second)),
        0);
  }
}

// Gloo moves its bytes over the same connections; the system test of slow links has both.
void ExpectRightOnASlowLink(int size, int64_t count, uint64_t bytes_per_second,
                            int64_t timeout_ms) {
  World world(PluginPath("tcp"), size, {{"io_threads", "1"}});
  // Connects all pairs.
  RunRanks(size, [&](int rank) {
    for (uint64_t i = 0; i < 2; ++i) {
      TransferBuffers small({.count = 100000}, rank, size);
      ExpectRight(world, rank, small, i);
    }
  });
  SlowDown(bytes_per_second, size == 2);
  const int64_t begin = kit::MonotonicNs();
  RunRanks(size, [&](int rank) {
    std::vector<TransferBuffers> buffers;
    std::vector<Work*> works;
    for (uint64_t i = 0; i < 2; ++i) {
      buffers.emplace_back(TransferCase{.count = i == 0 ? count : 1000}, rank, size);
      buffers.back().Fill();
      Transfer transfer = buffers.back().MakeTransfer(2 + i);
      transfer.timeout_ms = timeout_ms;
      works.push_back(MustSubmit(world.rank(rank), transfer));
    }
    for (size_t i = 0; i < works.size(); ++i) {
      const Status status = works[i]->WaitHost(120000);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(buffers[i].Check());
      works[i]->Release();
    }
  });
  EXPECT_GT(kit::MonotonicNs() - begin, 2 * timeout_ms * 1000000) << "nothing was slow";
}

TEST(TcpNetwork, ASlowLinkIsNoFailure) {
  ExpectRightOnASlowLink(2, 1000000, 1000000, 800);
}

// The third rank moves nothing for longer than the timeout, and sees that the others do.
TEST(TcpNetwork, ASlowLinkElsewhereIsNoFailure) {
  ExpectRightOnASlowLink(3, 1500000, 1000000, 600);
}

INSTANTIATE_TEST_SUITE_P(Libraries, OverTcp, ::testing::ValuesIn(PluginPaths({TCP_PLUGINS})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
