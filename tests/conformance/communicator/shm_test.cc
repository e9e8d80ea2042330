// What is particular to shm: buffers that are used in place, ranks that stop, many ranks, and that
// nothing is left.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "engine/ext/shared_memory.h"
#include "tests/conformance/communicator/communicator_rig.h"
#include "tests/support/temp_folder.h"

namespace engine::test {
namespace {

constexpr char kLibrary[] = ENGINE_TEST_PLUGIN_DIR "/libengine_shm.so";

SharedMemory& MemoryOf(Communicator& communicator) {
  return *Query<SharedMemory>(communicator);
}

// What is queued at once takes longer than its timeout, and moves all the time.
TEST(Shm, ATransferBehindOthersThatMoveIsNotLate) {
  constexpr int kCount = 20;
  World world(kLibrary, 2);
  RunRanks(2, [&](int rank) {
    std::vector<TransferBuffers> buffers;
    std::vector<Work*> works;
    for (uint64_t i = 0; i < kCount; ++i) {
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(60));
      buffers.emplace_back(TransferCase{.count = 10}, rank, 2);
      buffers.back().Fill();
      Transfer transfer = buffers.back().MakeTransfer(i);
      transfer.timeout_ms = 600;
      works.push_back(MustSubmit(world.rank(rank), transfer));
    }
    for (size_t i = 0; i < kCount; ++i) {
      const Status status = works[i]->WaitHost(20000);
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(buffers[i].Check());
      works[i]->Release();
    }
  });
}

// All ranks in shared memory, one, and all but one.
TEST(Shm, BuffersInSharedMemoryAndElsewhereGiveTheSameResults) {
  for (int size = 2; size <= 3; ++size) {
    World world(kLibrary, size);
    const CommunicatorTraits integers{.kinds = world.rank(0).traits().kinds,
                                      .dtypes = Bit(DType::kInt32)};
    RunRanks(size, [&](int rank) {
      uint64_t sequence = 0;
      for (const TransferCase& transfer : AllCases(integers, size, {3, 5000, 130003})) {
        for (const int sharing : {size, 1, size - 1}) {
          SCOPED_TRACE(transfer.Words() + ", shared by " + std::to_string(sharing));
          TransferBuffers buffers(transfer, rank, size,
                                  rank < sharing ? &MemoryOf(world.rank(rank)) : nullptr);
          ExpectRight(world, rank, buffers, sequence++);
        }
      }
    });
  }
}

TEST(Shm, SharedMemoryIsZeroedAndBounded) {
  World world(kLibrary, 2);
  SharedMemory& memory = MemoryOf(world.rank(0));
  void* data = nullptr;
  EXPECT_EQ(memory.Allocate(0, &data).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(memory.Allocate(uint64_t{1} << 60, &data).code(), StatusCode::kResourceExhausted);
  ASSERT_TRUE(memory.Allocate(100001, &data).ok());
  const auto* const bytes = static_cast<const uint8_t*>(data);
  EXPECT_EQ(std::count(bytes, bytes + 100001, 0), 100001);
  memory.Free(data);
  memory.Free(nullptr);
}

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
  const auto errors = World::CreationErrors(
      kLibrary, 2, 2,
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

RankProcess RankOf(const engine::testing::TempFolder& folder, int rank) {
  return {.path = kLibrary,
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
  const auto before = FilesIn("/dev/shm");
  for (int round = 0; round < 15; ++round) {
    const engine::testing::TempFolder folder;
    const pid_t alive = RankOf(folder, 0).Start(), killed = RankOf(folder, 1).Start();
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
