// Ranks as processes: what the survivors of a killed rank get.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "bench/support/folder_host.h"
#include "tests/conformance/communicator/communicator_rig.h"

namespace engine::test {
namespace {

class CommunicatorProcess : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "communicator.XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

// Exit codes of a surviving rank.
enum Outcome : int {
  kBlamedTheKilled = 0,
  kNotCreated = 10,
  kStalled = 11,  // no error although a rank is dead
  kWrongCode = 12,
  kWrongRank = 13,
  kMeasuresOnly = 14,
};

// All-reduces without end; the victim kills itself with transfers in flight.
int Train(const std::string& path, const std::filesystem::path& folder, int rank, int size,
          int victim) {
  const auto plugin = PluginUnderTest::Load(path);
  if (!plugin.ok()) return kNotCreated;
  bench::FolderHost host(
      {.rank = rank, .world_size = size, .local_rank = rank, .local_world_size = size}, folder,
      DeviceOfRank(rank));
  const auto created = plugin->Create<Communicator>(host);
  if (!created.ok()) return kNotCreated;
  Communicator& communicator = **created;
  if (communicator.traits().no_op) return kMeasuresOnly;
  std::vector<TransferBuffers> buffers;
  for (int i = 0; i < 4; ++i) {
    buffers.emplace_back(TransferCase{.count = 40000 * i + 1, .in_place = true}, rank, size);
  }
  uint64_t sequence = 0;
  for (int step = 0; step < 1000; ++step) {
    Work* works[4] = {};
    Status status;
    for (size_t i = 0; i < 4 && status.ok(); ++i) {
      status = communicator.Submit(buffers[i].MakeTransfer(sequence++), &works[i]);
    }
    if (rank == victim && step == 5) raise(SIGKILL);
    for (Work* work : works) {  // all: until a work is terminal its buffers are in use
      if (!work) continue;
      const Status waited = work->WaitHost(20000);
      if (status.ok()) status = waited;
      work->Release();
    }
    if (status.ok()) continue;
    if (status.code() != StatusCode::kPeerLost) return kWrongCode;
    return status.rank() == victim ? kBlamedTheKilled : kWrongRank;
  }
  return kStalled;
}

TEST_P(CommunicatorProcess, SurvivorsOfAKilledRankNameItPromptly) {
  constexpr int kSize = 3;
  for (const int victim : {0, kSize - 1}) {
    const std::filesystem::path folder = folder_ / std::to_string(victim);
    std::filesystem::create_directory(folder);
    std::vector<pid_t> children;
    for (int rank = 0; rank < kSize; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) _exit(Train(GetParam(), folder, rank, kSize, victim));
      children.push_back(child);
    }
    int status = 0;
    ASSERT_EQ(waitpid(children[static_cast<size_t>(victim)], &status, 0),
              children[static_cast<size_t>(victim)]);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const auto death = std::chrono::steady_clock::now();
    bool no_op = !killed && WEXITSTATUS(status) == kMeasuresOnly;
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == victim) continue;
      ASSERT_GT(waitpid(children[static_cast<size_t>(rank)], &status, 0), 0);
      ASSERT_TRUE(WIFEXITED(status)) << "rank " << rank << " died of signal " << WTERMSIG(status);
      if (!no_op) {
        EXPECT_EQ(WEXITSTATUS(status), kBlamedTheKilled) << "rank " << rank;
      }
    }
    if (no_op) GTEST_SKIP() << "ranks never meet";
    EXPECT_TRUE(killed);
    EXPECT_LT(std::chrono::steady_clock::now() - death, std::chrono::seconds(5));
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorProcess);
INSTANTIATE_TEST_SUITE_P(Libraries, CommunicatorProcess,
                         ::testing::ValuesIn(PluginPaths({CONNECTING_COMMUNICATORS})),
                         NameOfLibrary);

}  // namespace
}  // namespace engine::test
