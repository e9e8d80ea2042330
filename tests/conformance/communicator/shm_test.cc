// What is particular to shm: buffers that are used in place, ranks that stop, many ranks, and that
// nothing is left.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "bench/support/folder_host.h"
#include "engine/ext/shared_memory.h"
#include "tests/conformance/communicator/communicator_rig.h"

namespace engine::test {
namespace {

constexpr char kLibrary[] = ENGINE_TEST_PLUGIN_DIR "/libengine_shm.so";

SharedMemory& MemoryOf(Communicator& communicator) {
  return *static_cast<SharedMemory*>(communicator.Query(kSharedMemoryId));
}

// Send and receive buffers of one rank, in shared memory or not.
class Buffers {
 public:
  Buffers(Communicator& communicator, bool shared, size_t elements)
      : memory_(MemoryOf(communicator)), shared_(shared), private_(shared ? 0 : 2 * elements) {
    void* data = private_.data();
    if (shared) {
      const Status status = memory_.Allocate(2 * elements * sizeof(int32_t), &data);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    send = static_cast<int32_t*>(data);
    recv = send + elements;
    std::fill(recv, recv + elements, -1);
  }
  ~Buffers() {
    if (shared_) memory_.Free(send);
  }

  int32_t* send = nullptr;
  int32_t* recv = nullptr;

 private:
  SharedMemory& memory_;
  const bool shared_;
  std::vector<int32_t> private_;
};

int32_t Input(int rank, int64_t i) {
  return static_cast<int32_t>((i % 999 + 1) * (rank == 0 ? 1 : rank * 1000));
}

int32_t Expected(TransferKind kind, int rank, int size, int64_t count, int64_t i) {
  if (kind == TransferKind::kBroadcast) return Input(size - 1, i);
  if (kind == TransferKind::kAllGather) return Input(static_cast<int>(i / count), i % count);
  if (kind == TransferKind::kReduceScatter) i += rank * count;
  int32_t sum = 0;
  for (int r = 0; r < size; ++r) sum += Input(r, i);
  return sum;
}

// `shares` says which ranks have their buffers in shared memory.
void RunKind(World& world, int rank, TransferKind kind, int64_t count, bool in_place, bool shares,
             uint64_t sequence) {
  const int size = world.size();
  const int64_t sends = kind == TransferKind::kReduceScatter ? count * size : count;
  const int64_t receives = kind == TransferKind::kAllGather ? count * size : count;
  Buffers buffers(world.rank(rank), shares, static_cast<size_t>(count * size));
  int32_t* send = buffers.send;
  int32_t* recv = buffers.recv;
  if (in_place) {
    if (kind == TransferKind::kReduceScatter) recv = send + rank * count;
    if (kind == TransferKind::kAllGather) send = recv + rank * count;
    if (kind == TransferKind::kAllReduce || kind == TransferKind::kBroadcast) recv = send;
  }
  for (int64_t i = 0; i < sends; ++i) send[i] = Input(rank, i);
  const Status status = SubmitAndWait(world.rank(rank), {.kind = kind,
                                                         .dtype = DType::kInt32,
                                                         .root = size - 1,
                                                         .send = send,
                                                         .recv = recv,
                                                         .count = count,
                                                         .sequence = sequence});
  ASSERT_TRUE(status.ok()) << status.message();
  for (int64_t i = 0; i < receives; ++i) {
    ASSERT_EQ(recv[i], Expected(kind, rank, size, count, i))
        << Name(kind) << " of " << count << ", rank " << rank << " of " << size << ", element " << i
        << (in_place ? ", in place" : "") << (shares ? ", shared" : "");
  }
}

// All ranks in shared memory, none, and some.
TEST(Shm, BuffersInSharedMemoryAndElsewhereGiveTheSameResults) {
  for (int size = 2; size <= 3; ++size) {
    World world(kLibrary, size);
    ASSERT_TRUE(world.ok());
    RunRanks(size, [&](int rank) {
      uint64_t sequence = 0;
      for (int kind = 0; kind < static_cast<int>(TransferKind::kBarrier); ++kind) {
        for (const int64_t count : {3, 5000, 130003}) {
          for (const bool in_place : {false, true}) {
            for (const int sharing : {size, 1, size - 1}) {
              RunKind(world, rank, static_cast<TransferKind>(kind), count, in_place, rank < sharing,
                      sequence++);
            }
          }
        }
      }
    });
  }
}

TEST(Shm, SharedMemoryIsZeroedAndBounded) {
  World world(kLibrary, 2);
  ASSERT_TRUE(world.ok());
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
  ASSERT_TRUE(world.ok());
  RunRanks(size, [&](int rank) {
    for (uint64_t n = 0; n < 60; ++n) {
      RunKind(world, rank, TransferKind::kAllReduce, n % 3 == 0 ? 50000 : 100, n % 2 == 0, false,
              n);
    }
  });
}

TEST(Shm, RanksOnOtherHostsAndServersAreRefused) {
  const auto plugin = PluginUnderTest::Load(kLibrary);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  bench::FolderHost far({.rank = 0, .world_size = 2, .local_world_size = 1, .one_host = 0}, {});
  EXPECT_EQ(plugin->Create<Communicator>(far).status().code(), StatusCode::kConfig);
  bench::FolderHost server({.world_size = 1, .servers = 1, .is_server = 1}, {});
  EXPECT_EQ(plugin->Create<Communicator>(server).status().code(), StatusCode::kConfig);
}

TEST(Shm, RanksWithDifferentStagesDoNotMeet) {
  const auto plugin = PluginUnderTest::Load(kLibrary);
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  const auto hosts = MakeMemoryHosts(2);
  RunRanks(2, [&](int rank) {
    const auto created = plugin->Create<Communicator>(
        *hosts[static_cast<size_t>(rank)],
        {{"chunk_kb", rank == 0 ? "64" : "128"}, {"rendezvous_timeout_ms", "5000"}});
    ASSERT_FALSE(created.ok());
    EXPECT_EQ(created.status().code(), StatusCode::kRendezvous) << created.status().message();
    EXPECT_EQ(created.status().rank(), 1 - rank);
  });
}

// Ranks as processes.
class ShmProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "shm.XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A rank that all-reduces, half of the time in shared memory, until something fails. Returns the
  // code of the failure, or 100 when the failure does not name the other rank.
  static int Train(const std::filesystem::path& folder, int rank, int64_t timeout_ms, int stop_at) {
    const auto plugin = PluginUnderTest::Load(kLibrary);
    if (!plugin.ok()) return 101;
    bench::FolderHost host(
        {.rank = rank, .world_size = 2, .local_rank = rank, .local_world_size = 2}, folder);
    const auto created = plugin->Create<Communicator>(host, {{"rendezvous_timeout_ms", "1500"}});
    if (!created.ok()) return static_cast<int>(created.status().code());
    constexpr int64_t kCount = 100000;
    void* shared = nullptr;
    const Status allocated = MemoryOf(**created).Allocate(kCount * sizeof(float), &shared);
    if (!allocated.ok()) return static_cast<int>(allocated.code());
    std::vector<float> other(kCount);
    for (int step = 0;; ++step) {
      if (step == stop_at) raise(SIGSTOP);
      void* const data = step % 2 ? shared : other.data();
      const Status status = SubmitAndWait(**created, {.send = data,
                                                      .recv = data,
                                                      .count = kCount,
                                                      .sequence = static_cast<uint64_t>(step),
                                                      .timeout_ms = timeout_ms});
      if (status.ok()) continue;
      return status.rank() == 1 - rank ? static_cast<int>(status.code()) : 100;
    }
  }

  pid_t Start(const std::filesystem::path& folder, int rank, int64_t timeout_ms, int stop_at) {
    std::filesystem::create_directories(folder);
    const pid_t child = fork();
    if (child == 0) _exit(Train(folder, rank, timeout_ms, stop_at));
    return child;
  }

  std::filesystem::path folder_;
};

TEST_F(ShmProcess, AStoppedRankIsATimeoutThatNamesIt) {
  const pid_t alive = Start(folder_, 0, 500, -1), stopped = Start(folder_, 1, 500, 20);
  int status = 0;
  ASSERT_EQ(waitpid(alive, &status, 0), alive);
  kill(stopped, SIGKILL);
  waitpid(stopped, nullptr, 0);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(StatusCode::kTimeout));
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
TEST_F(ShmProcess, ARankKilledAtAnyMomentIsNamedAndLeavesNothing) {
  const unsigned seed = 99;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto before = FilesIn("/dev/shm");
  for (int round = 0; round < 15; ++round) {
    const auto folder = folder_ / std::to_string(round);
    const pid_t alive = Start(folder, 0, 20000, -1), killed = Start(folder, 1, 20000, -1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40000));
    kill(killed, SIGKILL);
    waitpid(killed, nullptr, 0);
    const auto death = std::chrono::steady_clock::now();
    int status = 0;
    ASSERT_EQ(waitpid(alive, &status, 0), alive);
    ASSERT_TRUE(WIFEXITED(status));
    const auto code = static_cast<StatusCode>(WEXITSTATUS(status));
    EXPECT_TRUE(code == StatusCode::kPeerLost || code == StatusCode::kRendezvous)
        << "round " << round << ": " << WEXITSTATUS(status);
    if (code == StatusCode::kPeerLost) {
      EXPECT_LT(std::chrono::steady_clock::now() - death, std::chrono::seconds(5));
    }
  }
  EXPECT_EQ(FilesIn("/dev/shm"), before);
}

}  // namespace
}  // namespace engine::test
