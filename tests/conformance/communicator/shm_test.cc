// What is particular to shm: ranks that stop, many ranks, and that nothing is left.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "tests/conformance/plugin_under_test.h"
#include "tests/support/temp_folder.h"
#include "tools/conform/communicator/communicator_rig.h"

namespace engine::test {
namespace {

constexpr char kLibrary[] = ENGINE_TEST_PLUGIN_DIR "/libengine_shm.so";

TEST(Shm, MoreRanksThanCoresFinish) {
  const int size = std::max(8, 2 * static_cast<int>(std::thread::hardware_concurrency()));
  World world(kLibrary, size);
  RunRanks(size, [&](int rank) {
    for (uint64_t n = 0; n < 60; ++n) {
      // Of sums, this rig knows no more than those of six ranks.
      TransferBuffers buffers({.dtype = DType::kInt32,
                               .reduction = Reduction::kMax,
                               .count = n % 3 == 0 ? 50000 : 100,
                               .in_place = n % 2 == 0},
                              rank, size);
      ExpectRight(world, rank, buffers, n);
    }
  });
}

TEST(Shm, RanksOnOtherHostsAndServersAreRefused) {
  const PluginUnderTest plugin = Must(PluginUnderTest::Load(kLibrary));
  MemoryHost far({.rank = 0, .world_size = 2, .local_world_size = 1, .one_host = 0});
  EXPECT_EQ(plugin.Create<Communicator>(far).status().code(), StatusCode::kConfig);
  MemoryHost server({.world_size = 1, .servers = 1, .is_server = 1});
  EXPECT_EQ(plugin.Create<Communicator>(server).status().code(), StatusCode::kConfig);
}

TEST(Shm, RanksWithDifferentStagesDoNotMeet) {
  const PluginUnderTest plugin = Must(PluginUnderTest::Load(kLibrary));
  const auto errors = World::CreationErrors(
      plugin, 2, 2,
      [](int rank) {
        return OptionValues::Overrides{{"chunk_kb", rank == 0 ? "64" : "128"}};
      },
      5000);
  for (int rank = 0; rank < 2; ++rank) {
    const Status& error = errors[static_cast<size_t>(rank)];
    EXPECT_EQ(error.code(), StatusCode::kRendezvous) << error.message();
    EXPECT_EQ(error.rank(), 1 - rank);
  }
}

RankProcess RankOf(const PluginUnderTest& plugin, const engine::test::TempFolder& folder,
                   int rank) {
  return {.plugin = plugin,
          .folder = folder.path(),
          .rank = rank,
          .blames = 1 - rank,
          .rendezvous_timeout_ms = 1500};
}

std::set<std::string> FilesIn(const char* folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename().string().find("engine") == std::string::npos) continue;
    names.insert(entry.path().string());
  }
  return names;
}

// While the ranks meet, too.
TEST(ShmProcess, ARankKilledAtAnyMomentIsNamedAndLeavesNothing) {
  const unsigned seed = 99;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const PluginUnderTest plugin = Must(PluginUnderTest::Load(kLibrary));
  const auto before = FilesIn("/dev/shm");
  for (int round = 0; round < 15; ++round) {
    const engine::test::TempFolder folder;
    const pid_t alive = RankOf(plugin, folder, 0).Start();
    const pid_t killed = RankOf(plugin, folder, 1).Start();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40000));
    kill(killed, SIGKILL);
    EndOf(killed);
    const auto death = std::chrono::steady_clock::now();
    const auto code = static_cast<StatusCode>(EndOf(alive));
    EXPECT_TRUE(code == StatusCode::kPeerLost || code == StatusCode::kRendezvous)
        << "round " << round << ": " << static_cast<int>(code);
    if (code == StatusCode::kPeerLost) {
      EXPECT_LT(std::chrono::steady_clock::now() - death, std::chrono::seconds(5));
    }
  }
  EXPECT_EQ(FilesIn("/dev/shm"), before);
}

}  // namespace
}  // namespace engine::test
