// All-reduce through a communicator plugin against MPI_Allreduce, and against a bare loop over
// memory that the ranks share.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target all_reduce_vs_mpi
//   mpirun -n 2 --bind-to core build/bench/bench/all_reduce_vs_mpi
//
// Ranks are processes of this host, started by mpirun, and sum float32 in place. Competitors:
//   bare loop  every rank adds its slice of all ranks' arrays and writes it to all of them, between
//              two barriers of flags in the same memory: about what this machine can do
//   arena      the plugin, arrays in memory of its own (engine/ext/shared_memory.h) if it offers
//   that plugin     the plugin, arrays from malloc mpi        MPI_Allreduce with MPI_IN_PLACE
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
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/support/folder_host.h"
#include "bench/support/plugin_library.h"
#include "engine/ext/shared_memory.h"

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSampleBytes = 256 << 10;  // a sample of small arrays takes several of them
constexpr int kMaxPerSample = 200;

struct Flags {
  std::string plugin = ENGINE_BENCH_PLUGIN_DIR "/libengine_shm.so";
  std::vector<int64_t> bytes = {4,        64,        1 << 10, 4 << 10, 16 << 10, 32 << 10,
                                64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> options;
  int rounds = 20;
  double seconds = 1;  // per size and competitor
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

class Competitor {
 public:
  virtual ~Competitor() = default;
  virtual const char* name() const = 0;
  virtual float* data() = 0;  // room for the largest array
  virtual void Sum(int64_t count) = 0;
};

// Of malloc, in large pages where the machine has them, as a trainer's arena would be.
class PrivateArray {
 public:
  explicit PrivateArray(size_t size_bytes)
      : size_(size_bytes),
        memory_(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    madvise(memory_, size_, MADV_HUGEPAGE);
    std::memset(memory_, 0, size_);
  }
  ~PrivateArray() { munmap(memory_, size_); }
  float* data() { return static_cast<float*>(memory_); }

 private:
  const size_t size_;
  void* const memory_;
};

class Mpi final : public Competitor {
 public:
  explicit Mpi(size_t size_bytes) : array_(size_bytes) {}
  const char* name() const override { return "mpi"; }
  float* data() override { return array_.data(); }
  void Sum(int64_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }

 private:
  PrivateArray array_;
};

class ThroughPlugin final : public Competitor {
 public:
  ThroughPlugin(const char* name, Communicator& communicator, float* data, uint64_t* sequence)
      : name_(name), communicator_(communicator), data_(data), sequence_(*sequence) {}
  const char* name() const override { return name_; }
  float* data() override { return data_; }
  void Sum(int64_t count) override {
    Work* work = nullptr;
    const Transfer transfer{.send = data_, .recv = data_, .count = count, .sequence = sequence_++};
    Status status = communicator_.Submit(transfer, &work);
    if (status.ok()) {
      status = work->WaitHost(transfer.timeout_ms);
      work->Release();
    }
    Require(status, name_);
  }

 private:
  const char* const name_;
  Communicator& communicator_;
  float* const data_;
  uint64_t& sequence_;
};

// Arrays of all ranks in one piece of memory, in front of each a line with its flag.
class BareLoop final : public Competitor {
 public:
  explicit BareLoop(size_t size_bytes) : flags_(static_cast<size_t>(WorldSize())), arrays_(flags_) {
    constexpr size_t kFlagBytes = 4096;
    void* own = nullptr;
    MPI_Win_allocate_shared(static_cast<MPI_Aint>(kFlagBytes + size_bytes), 1, MPI_INFO_NULL,
                            MPI_COMM_WORLD, &own, &window_);
    std::memset(own, 0, kFlagBytes + size_bytes);
    for (int rank = 0; rank < WorldSize(); ++rank) {
      MPI_Aint size = 0;
      int unit = 0;
      void* base = nullptr;
      MPI_Win_shared_query(window_, rank, &size, &unit, &base);
      flags_[static_cast<size_t>(rank)] = static_cast<char*>(base);
      arrays_[static_cast<size_t>(rank)] = static_cast<char*>(base) + kFlagBytes;
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  ~BareLoop() override { MPI_Win_free(&window_); }

  const char* name() const override { return "bare loop"; }
  float* data() override { return Array(Rank()); }
  void Sum(int64_t count) override {
    Meet();
    const int64_t begin = count * Rank() / WorldSize(), end = count * (Rank() + 1) / WorldSize();
    float* const first = Array(0);
    for (int other = 1; other < WorldSize(); ++other) {
      Add(first + begin, Array(other) + begin, end - begin, other + 1 == WorldSize());
    }
    for (int other = 1; other + 1 < WorldSize(); ++other) {
      std::memcpy(Array(other) + begin, first + begin,
                  sizeof(float) * static_cast<size_t>(end - begin));
    }
    Meet();
  }

 private:
  float* Array(int rank) { return reinterpret_cast<float*>(arrays_[static_cast<size_t>(rank)]); }

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
    ++rendezvous_;
    Flag(Rank()).store(rendezvous_, std::memory_order_release);
    for (int rank = 0; rank < WorldSize(); ++rank) {
      while (Flag(rank).load(std::memory_order_acquire) < rendezvous_) continue;
    }
  }
  std::atomic<uint64_t>& Flag(int rank) {
    return *reinterpret_cast<std::atomic<uint64_t>*>(flags_[static_cast<size_t>(rank)]);
  }

  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<char*> flags_, arrays_;
  uint64_t rendezvous_ = 0;
};

void Check(Competitor& competitor, int64_t count) {
  float* const data = competitor.data();
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>((i % 97 + 1) * (Rank() + 1));
  competitor.Sum(count);
  const int64_t factor = WorldSize() * (WorldSize() + 1) / 2;
  for (int64_t i = 0; i < count; ++i) {
    if (data[i] == static_cast<float>((i % 97 + 1) * factor)) continue;
    std::fprintf(stderr, "INVALID: %s, %lld elements: element %lld is %g\n", competitor.name(),
                 static_cast<long long>(count), static_cast<long long>(i), data[i]);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  std::fill(data, data + count, 0.0f);  // stays finite, however often it is summed
}

double SampleUs(Competitor& competitor, int64_t count, int repeats) {
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) competitor.Sum(count);
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / repeats;
}

struct Figures {
  double median_us = 0, low_us = 0;
};

// In ascending order, of each sample the time of its slowest rank.
Figures Summarise(std::vector<double> samples) {
  MPI_Allreduce(MPI_IN_PLACE, samples.data(), static_cast<int>(samples.size()), MPI_DOUBLE, MPI_MAX,
                MPI_COMM_WORLD);
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[samples.size() / 10]};
}

std::vector<Figures> MeasureSize(const Flags& flags, int64_t bytes,
                                 const std::vector<std::unique_ptr<Competitor>>& all) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  const int repeats = static_cast<int>(std::clamp<int64_t>(kSampleBytes / bytes, 1, kMaxPerSample));
  std::vector<std::vector<double>> samples(all.size());
  std::vector<double> block_samples(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    Check(*all[i], count);
    for (int warm = 0; warm < 3; ++warm) SampleUs(*all[i], count, repeats);
    double us = SampleUs(*all[i], count, repeats) * repeats;
    MPI_Bcast(&us, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    block_samples[i] = std::clamp(flags.seconds * 1e6 / flags.rounds / us, 1.0, 2000.0);
  }
  for (int round = 0; round < flags.rounds; ++round) {
    for (size_t turn = 0; turn < all.size(); ++turn) {
      const size_t i = round % 2 ? all.size() - 1 - turn : turn;
      MPI_Barrier(MPI_COMM_WORLD);
      SampleUs(*all[i], count, repeats);
      for (int n = 0; n < static_cast<int>(block_samples[i]); ++n) {
        samples[i].push_back(SampleUs(*all[i], count, repeats));
      }
    }
  }
  std::vector<Figures> figures;
  for (auto& of_one : samples) figures.push_back(Summarise(std::move(of_one)));
  return figures;
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

void PrintLoad(const char* when) {
  double load = 0;
  if (getloadavg(&load, 1) == 1) std::printf("load average %s: %.2f\n", when, load);
}

void Measure(const Flags& flags) {
  const auto largest =
      static_cast<size_t>(*std::max_element(flags.bytes.begin(), flags.bytes.end()));
  const std::string folder = SharedFolder();
  FolderHost host({.rank = Rank(),
                   .world_size = WorldSize(),
                   .local_rank = Rank(),
                   .local_world_size = WorldSize()},
                  folder);
  const auto plugin = PluginLibrary::Load(flags.plugin);
  Require(plugin.status(), "plugin");
  Overrides options;
  for (const std::string& option : flags.options) {
    const size_t equals = std::min(option.find('='), option.size() - 1);
    options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  const auto created = plugin->Create<Communicator>(host, options);
  Require(created.status(), "plugin");
  Communicator& communicator = **created;
  PrivateArray array(largest);
  uint64_t sequence = 0;
  std::vector<std::unique_ptr<Competitor>> all;
  all.push_back(std::make_unique<BareLoop>(largest));
  if (void* const memory = communicator.Query(kSharedMemoryId)) {
    void* arena = nullptr;
    Require(static_cast<SharedMemory*>(memory)->Allocate(largest, &arena), "arena");
    all.push_back(std::make_unique<ThroughPlugin>("arena", communicator, static_cast<float*>(arena),
                                                  &sequence));
  }
  all.push_back(std::make_unique<ThroughPlugin>("plugin", communicator, array.data(), &sequence));
  all.push_back(std::make_unique<Mpi>(largest));
  if (Rank() == 0) {
    PrintLoad("before");
    std::printf("%d ranks; microseconds, median (10th percentile)\n%10s", WorldSize(), "bytes");
    for (const auto& competitor : all) std::printf(" %24s", competitor->name());
    std::printf("\n");
  }
  for (const int64_t bytes : flags.bytes) {
    const std::vector<Figures> figures = MeasureSize(flags, bytes, all);
    if (Rank() != 0) continue;
    std::printf("%10lld", static_cast<long long>(bytes));
    for (const Figures& of_one : figures) {
      std::printf(" %11.2f (%10.2f)", of_one.median_us, of_one.low_us);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  if (Rank() == 0) {
    PrintLoad("after");
    std::filesystem::remove_all(folder);
  }
  MPI_Barrier(MPI_COMM_WORLD);  // nobody leaves while others still use the plugin
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("All-reduce through a communicator plugin against MPI_Allreduce");
  app.option_defaults()->always_capture_default();
  app.add_option("--plugin", flags.plugin, "library of the communicator");
  app.add_option("--bytes", flags.bytes, "sizes of the arrays, with commas between them")
      ->delimiter(',')
      ->check(CLI::Range(4, 1 << 30));
  app.add_option("--option", flags.options, "of the plugin: chunk_kb=64");
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
