// What the tcp plugin promises beyond the contract of communicators.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <filesystem>

#include "plugins/tcp/wire.h"
#include "tests/conformance/communicator/communicator_rig.h"

namespace engine::test {
namespace {

using ::testing::HasSubstr;

constexpr char kLibrary[] = ENGINE_TEST_PLUGIN_DIR "/libengine_tcp.so";

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
    ASSERT_TRUE(world.ok());
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
TEST(TcpNetwork, AMismatchNamesBothSides) {
  World world(kLibrary, 2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
    TransferBuffers buffers({.count = rank == 0 ? 1000 : 1001}, rank, 2);
    Transfer transfer = buffers.MakeTransfer(0);
    transfer.unit = rank == 0 ? 40 : 41;
    const Status status = SubmitAndWait(world.rank(rank), transfer);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("all-reduce of 1000 float32 (unit 40, sequence 0)"));
    EXPECT_THAT(status.message(), HasSubstr("all-reduce of 1001 float32 (unit 41, sequence 0)"));
  });
}

// Ranks that have lost count meet all the same.
TEST(TcpNetwork, AnotherSequenceIsAMismatchAndNotATimeout) {
  World world(kLibrary, 2);
  ASSERT_TRUE(world.ok());
  RunRanks(2, [&](int rank) {
    TransferBuffers buffers({.count = 10}, rank, 2);
    const Status status =
        SubmitAndWait(world.rank(rank), buffers.MakeTransfer(static_cast<uint64_t>(rank)));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("sequence 0"));
    EXPECT_THAT(status.message(), HasSubstr("sequence 1"));
  });
}

// Why no write blocks for good. Gloo itself makes the buffer smaller, to the size of a message.
TEST(TcpNetwork, TheSendBufferTakesAWindowWhateverWasSentBefore) {
  World world(kLibrary, 3, {{"io_threads", "1"}});
  ASSERT_TRUE(world.ok());
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
  ASSERT_TRUE(world.ok());
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
  const auto plugin = PluginUnderTest::Load(kLibrary);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  const auto hosts = MakeMemoryHosts(2);
  RunRanks(2, [&](int rank) {
    const auto created = plugin->Create<Communicator>(*hosts[static_cast<size_t>(rank)],
                                                      {{"congestion_control", "carrier_pigeon"}});
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().code(), StatusCode::kConfig) << created.status().message();
    EXPECT_THAT(created.status().message(), HasSubstr("'carrier_pigeon'"));
  });
}

}  // namespace
}  // namespace engine::test
