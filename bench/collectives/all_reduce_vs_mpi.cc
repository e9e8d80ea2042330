// All-reduce through the communicator shm against MPI_Allreduce, and against a bare loop over
// memory that the ranks share.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target all_reduce_vs_mpi
//   mpirun -n 2 --bind-to core build/bench/bench/all_reduce_vs_mpi
//
// Ranks are processes of this host, started by mpirun, and sum float32 in place. Competitors:
//   bare loop  every rank adds its slice of all ranks' arrays and writes it to all of them, between
//              two barriers of flags in the same memory: about what this machine can do
//   arena      the plugin, with memory of its own (engine/ext/shared_memory.h), if it offers that
//   plugin     the plugin, with private memory
//   mpi        MPI_Allreduce with MPI_IN_PLACE, with private memory
//
// They take turns in short blocks, so that a change of the machine's load meets all of them. A
// sample is the mean time of some all-reduces without a pause, of the rank where it was longest;
// printed are the median and the 10th percentile of the samples. Every sum is compared with the
// exact one before anything is timed: a wrong one ends the program with code 1.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "app/launch/folder_host.h"
#include "bench/collectives/contender.h"
#include "core/plugin/create_object.h"
#include "engine/communicator.h"
#include "engine/ext/shared_memory.h"

namespace engine::bench {
namespace {

constexpr int64_t kSampleBytes = 256 << 10;  // a sample of small arrays takes several of them
constexpr int kMaxPerSample = 200;

constexpr int64_t kSizes[] = {4,        64,        1 << 10, 4 << 10, 16 << 10, 32 << 10,
                              64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};

struct Flags {
  int rounds = 20;
  double seconds = 1;  // per size and competitor
};

// Sums `count` elements of `data`, which has room for the largest array, over all ranks.
struct Competitor {
  std::string name;
  float* data = nullptr;
  std::function<void(int64_t count)> sum;
};

void Require(const Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %s\n", what, status.message());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

int Rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int WorldSize() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

// In large pages where the machine has them, as a trainer's arena would be; until the end of the
// program.
float* PrivateArray(size_t size) {
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<float*>(std::memset(memory, 0, size));
}

Competitor Mpi(size_t size) {
  float* const data = PrivateArray(size);
  return {"mpi", data, [data](int64_t count) {
            MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                          MPI_COMM_WORLD);
          }};
}

Competitor ThroughPlugin(const char* name, Communicator& communicator, float* data,
                         uint64_t* sequence) {
  return {name, data, [=, &communicator](int64_t count) {
            Work* work = nullptr;
            const Transfer transfer{
                .send = data, .recv = data, .count = count, .sequence = (*sequence)++};
            Require(communicator.Submit(transfer, &work), name);
            Require(work->WaitHost(transfer.timeout_ms), name);
            work->Release();
          }};
}

// Arrays of all ranks in one piece of memory, in front of each a line with its flag. A rank that has
// raised its flag to n has done what stands before rendezvous n: the flag publishes it.
class BareLoop {
 public:
  explicit BareLoop(size_t size)
      : flags_(static_cast<size_t>(WorldSize())), arrays_(flags_.size()) {
    constexpr size_t kFlagBytes = 4096;
    void* own = nullptr;
    MPI_Win_allocate_shared(static_cast<MPI_Aint>(kFlagBytes + size), 1, MPI_INFO_NULL,
                            MPI_COMM_WORLD, &own, &window_);
    std::memset(own, 0, kFlagBytes + size);
    for (size_t rank = 0; rank < flags_.size(); ++rank) {
      MPI_Aint of_rank = 0;
      int unit = 0;
      char* base = nullptr;
      MPI_Win_shared_query(window_, static_cast<int>(rank), &of_rank, &unit, &base);
      flags_[rank] = reinterpret_cast<std::atomic<uint64_t>*>(base);
      arrays_[rank] = reinterpret_cast<float*>(base + kFlagBytes);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~BareLoop() { MPI_Win_free(&window_); }
  BareLoop(const BareLoop&) = delete;
  BareLoop& operator=(const BareLoop&) = delete;

  float* data() const { return arrays_[static_cast<size_t>(rank_)]; }

  void Sum(int64_t count) {
    Meet();
    const int ranks = static_cast<int>(arrays_.size());
    const int64_t begin = count * rank_ / ranks, end = count * (rank_ + 1) / ranks;
    float* const sum = arrays_[0] + begin;
    for (size_t other = 1; other < arrays_.size(); ++other) {
      Add(sum, arrays_[other] + begin, end - begin, other + 1 == arrays_.size());
    }
    for (size_t other = 1; other + 1 < arrays_.size(); ++other) {
      std::copy(sum, sum + (end - begin), arrays_[other] + begin);
    }
    Meet();
  }

 private:
  static void Add(float* a, float* b, int64_t count, bool both) {
    if (both) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i];
    } else {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) a[i] += b[i];
    }
  }

  void Meet() {
    flags_[static_cast<size_t>(rank_)]->store(++rendezvous_, std::memory_order_release);
    for (const std::atomic<uint64_t>* flag : flags_) {
      while (flag->load(std::memory_order_acquire) < rendezvous_) continue;
    }
  }

  const int rank_ = Rank();
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::atomic<uint64_t>*> flags_;
  std::vector<float*> arrays_;
  uint64_t rendezvous_ = 0;
};

void Check(const Competitor& competitor, int64_t count) {
  float* const data = competitor.data;
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>((i % 97 + 1) * (Rank() + 1));
  competitor.sum(count);
  const int64_t factor = WorldSize() * (WorldSize() + 1) / 2;
  for (int64_t i = 0; i < count; ++i) {
    if (data[i] == static_cast<float>((i % 97 + 1) * factor)) continue;
    std::fprintf(stderr, "INVALID: %s, %lld elements: element %lld is %g\n",
                 competitor.name.c_str(), static_cast<long long>(count), static_cast<long long>(i),
                 data[i]);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  std::fill(data, data + count, 0.0f);  // stays finite, however often it is summed
}

double SampleUs(const Competitor& competitor, int64_t count, int repeats) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) competitor.sum(count);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  return took.count() / repeats;
}

// Of each competitor its samples, each of its slowest rank, in ascending order.
std::vector<std::vector<double>> MeasureSize(const Flags& flags, int64_t bytes,
                                             const std::vector<Competitor>& all) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  const int repeats = static_cast<int>(std::clamp<int64_t>(kSampleBytes / bytes, 1, kMaxPerSample));
  std::vector<std::vector<double>> samples(all.size());
  std::vector<int> block_samples;
  for (const Competitor& competitor : all) {
    Check(competitor, count);
    for (int warm = 0; warm < 3; ++warm) SampleUs(competitor, count, repeats);
    double us = SampleUs(competitor, count, repeats) * repeats;
    MPI_Bcast(&us, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    const double wanted = flags.seconds * 1e6 / flags.rounds / us;
    block_samples.push_back(static_cast<int>(std::clamp(wanted, 1.0, 2000.0)));
  }
  for (int round = 0; round < flags.rounds; ++round) {
    for (size_t turn = 0; turn < all.size(); ++turn) {
      const size_t i = round % 2 ? all.size() - 1 - turn : turn;
      MPI_Barrier(MPI_COMM_WORLD);
      SampleUs(all[i], count, repeats);
      for (int n = 0; n < block_samples[i]; ++n) {
        samples[i].push_back(SampleUs(all[i], count, repeats));
      }
    }
  }
  for (std::vector<double>& of_one : samples) {
    MPI_Allreduce(MPI_IN_PLACE, of_one.data(), static_cast<int>(of_one.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    std::sort(of_one.begin(), of_one.end());
  }
  return samples;
}

std::string SharedFolder() {
  char folder[128] = {};
  if (Rank() == 0) {
    const auto path = std::filesystem::temp_directory_path() / "all_reduce.XXXXXX";
    std::snprintf(folder, sizeof(folder), "%s", path.c_str());
    if (!mkdtemp(folder)) Require(Status::Error(StatusCode::kStorage, "no folder"), folder);
  }
  MPI_Bcast(folder, sizeof(folder), MPI_CHAR, 0, MPI_COMM_WORLD);
  return folder;
}

void PrintTable(const Flags& flags, const std::vector<Competitor>& all) {
  const bool prints = Rank() == 0;
  const auto print_load = [prints] {
    double load = 0;
    if (prints && getloadavg(&load, 1) == 1) std::printf("load average: %.2f\n", load);
  };
  print_load();
  if (prints) {
    std::printf("%d ranks; microseconds, median (10th percentile)\n%10s", WorldSize(), "bytes");
    for (const Competitor& competitor : all) std::printf(" %24s", competitor.name.c_str());
    std::printf("\n");
  }
  for (const int64_t bytes : kSizes) {
    const std::vector<std::vector<double>> samples = MeasureSize(flags, bytes, all);
    if (!prints) continue;
    std::printf("%10lld", static_cast<long long>(bytes));
    for (const std::vector<double>& of_one : samples) {
      std::printf(" %11.2f (%10.2f)", of_one[of_one.size() / 2], of_one[of_one.size() / 10]);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  print_load();
}

void Measure(const Flags& flags) {
  constexpr size_t kLargest = kSizes[std::size(kSizes) - 1];
  const std::string folder = SharedFolder();
  launch::FolderHost host({.rank = Rank(),
                           .world_size = WorldSize(),
                           .local_rank = Rank(),
                           .local_world_size = WorldSize()},
                          folder);
  const auto choice = ChoosePlugin(ENGINE_BENCH_PLUGIN_DIR "/libengine_shm.so", {}, {});
  Require(choice.status(), "plugin");
  const auto created = plugin::Create<Communicator>(*choice, host);
  Require(created.status(), "plugin");
  Communicator& communicator = **created;
  BareLoop bare_loop(kLargest);
  uint64_t sequence = 0;
  std::vector<Competitor> all = {
      {"bare loop", bare_loop.data(), [&](int64_t count) { bare_loop.Sum(count); }}};
  if (void* const memory = Query<SharedMemory>(communicator)) {
    void* arena = nullptr;
    Require(static_cast<SharedMemory*>(memory)->Allocate(kLargest, &arena), "arena");
    all.push_back(ThroughPlugin("arena", communicator, static_cast<float*>(arena), &sequence));
  }
  all.push_back(ThroughPlugin("plugin", communicator, PrivateArray(kLargest), &sequence));
  all.push_back(Mpi(kLargest));
  PrintTable(flags, all);
  if (Rank() == 0) std::filesystem::remove_all(folder);
  MPI_Barrier(MPI_COMM_WORLD);  // nobody leaves while others still use the plugin
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("All-reduce through the communicator shm against MPI_Allreduce");
  app.option_defaults()->always_capture_default();
  app.add_option("--rounds", flags.rounds, "turns of each competitor and size")
      ->check(CLI::Range(1, 10000));
  app.add_option("--seconds", flags.seconds, "per size and competitor")
      ->check(CLI::Range(0.001, 600.0));
  CLI11_PARSE(app, argc, argv);
  MPI_Init(nullptr, nullptr);
  Measure(flags);
  MPI_Finalize();
  return 0;
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  return engine::bench::Main(argc, argv);
}
