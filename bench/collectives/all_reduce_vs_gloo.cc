// All-reduce through a communicator plugin against gloo's own algorithms.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target all_reduce_vs_gloo
//   build/bench/bench/all_reduce_vs_gloo --ranks 2
//
// Ranks are processes of this host and sum float32 in place, again and again without a pause. The
// competitors take turns in blocks, so that a change of the machine's load meets all of them. The
// time of an all-reduce is that of its slowest rank. The plugin runs the whole way from Submit to
// WaitHost; gloo's algorithms are run by the calling thread. Every sum is compared with the exact
// one before anything is timed: a wrong one prints INVALID and ends with code 1.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench/collectives/all_reducers.h"
#include "bench/collectives/rank_processes.h"
#include "tests/conformance/communicator/file_host.h"

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 4;     // each competitor has a block of its iterations in each round
constexpr int kWarmUps = 2;    // per block, not timed
constexpr int kMaxRanks = 64;  // of which sums are exact

struct Flags {
  std::string plugin = ENGINE_TEST_PLUGIN_DIR "/libengine_gloo.so";
  int ranks = 2;
  std::vector<int64_t> bytes = {4, 1 << 10, 64 << 10, 1 << 20, 16 << 20};
  int64_t iterations = 2000;
  int timeout_s = 120;
};

// As many bytes for larger arrays as for 64 KiB, but a median needs some iterations.
int64_t IterationsPerBlock(const Flags& flags, int64_t bytes) {
  const int64_t of_large = std::max<int64_t>(flags.iterations * (64 << 10) / bytes, 40);
  return std::min(flags.iterations, of_large) / kRounds;
}

// Waits in the store, asleep: ranks that are late have the cores.
void Barrier(Host& host, int* uses) {
  const std::string name = "barrier/" + std::to_string((*uses)++) + "/";
  ThrowIfError(host.StoreSet(name + std::to_string(host.rank_info().rank), {}));
  for (int rank = 0; rank < host.rank_info().world_size; ++rank) {
    std::string empty;
    ThrowIfError(host.StoreGetString(name + std::to_string(rank), 2 * kOperationTimeoutMs, &empty));
  }
}

// A prime period tells chunks apart.
float Digit(size_t index) {
  return static_cast<float>(index % 4093 + 1);
}

void CheckSum(AllReducer& competitor, const char* name, const RankInfo& ranks,
              std::vector<float>* data) {
  const auto own = static_cast<float>(ranks.rank + 1);
  const auto all = static_cast<float>(ranks.world_size * (ranks.world_size + 1) / 2);
  for (size_t i = 0; i < data->size(); ++i) (*data)[i] = Digit(i) * own;
  competitor.Run();
  for (size_t i = 0; i < data->size(); ++i) {
    if ((*data)[i] == Digit(i) * all) continue;
    ThrowIfError(Status::Error(StatusCode::kInternal,
                               "INVALID: %s: element %zu of %zu is %g, not %g", name, i,
                               data->size(), (*data)[i], Digit(i) * all));
  }
}

void TimeBlock(AllReducer& competitor, int64_t iterations, std::vector<double>* times_us) {
  for (int i = 0; i < kWarmUps; ++i) competitor.Run();
  for (int64_t i = 0; i < iterations; ++i) {
    const auto start = Clock::now();
    competitor.Run();
    times_us->push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
}

std::string TimesKey(size_t size, size_t competitor, int rank) {
  return "times/" + std::to_string(size) + "/" + std::to_string(competitor) + "/" +
         std::to_string(rank);
}

// Leaves the times in the store.
void MeasureRank(const Flags& flags, Host& host, const std::filesystem::path& folder) {
  const auto all = ConnectAll(flags.plugin, host, folder);
  int barriers = 0;
  for (size_t size = 0; size < flags.bytes.size(); ++size) {
    std::vector<float> data(static_cast<size_t>(flags.bytes[size]) / sizeof(float));
    for (size_t i = 0; i < all.size(); ++i) {
      all[i]->Prepare(data.data(), static_cast<int64_t>(data.size()));
      Barrier(host, &barriers);  // gloo: all buffers are registered
      CheckSum(*all[i], kAllReducerNames[i], host.rank_info(), &data);
    }
    std::fill(data.begin(), data.end(), 0.0f);  // stays finite, however often it is summed
    std::vector<std::vector<double>> times_us(all.size());
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < all.size(); ++i) {
        Barrier(host, &barriers);
        TimeBlock(*all[i], IterationsPerBlock(flags, flags.bytes[size]), &times_us[i]);
      }
    }
    Barrier(host, &barriers);  // `data` goes
    for (size_t i = 0; i < all.size(); ++i) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(times_us[i].data());
      ThrowIfError(host.StoreSet(TimesKey(size, i, host.rank_info().rank),
                                 {bytes, times_us[i].size() * sizeof(double)}));
    }
  }
}

// Of each iteration the time of its slowest rank, in ascending order.
std::vector<double> SlowestTimes(const Flags& flags, Host& host, size_t size, size_t competitor) {
  std::vector<double> slowest(
      static_cast<size_t>(IterationsPerBlock(flags, flags.bytes[size]) * kRounds));
  std::vector<double> times_us(slowest.size());
  for (int rank = 0; rank < flags.ranks; ++rank) {
    std::string text;
    ThrowIfError(host.StoreGetString(TimesKey(size, competitor, rank), 0, &text));
    std::memcpy(times_us.data(), text.data(), slowest.size() * sizeof(double));
    for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], times_us[i]);
  }
  std::sort(slowest.begin(), slowest.end());
  return slowest;
}

void PrintTable(const Flags& flags, Host& host) {
  std::printf("%d ranks on %ld cores; microseconds, median / 90th percentile\n%10s %10s",
              flags.ranks, sysconf(_SC_NPROCESSORS_ONLN), "bytes", "iterations");
  for (const char* name : kAllReducerNames) std::printf(" %20s", name);
  for (size_t size = 0; size < flags.bytes.size(); ++size) {
    const int64_t bytes = flags.bytes[size];
    std::printf("\n%10lld %10lld", static_cast<long long>(bytes),
                static_cast<long long>(IterationsPerBlock(flags, bytes) * kRounds));
    for (size_t i = 0; i < std::size(kAllReducerNames); ++i) {
      const std::vector<double> us = SlowestTimes(flags, host, size, i);
      std::printf(" %10.0f /%8.0f", us[us.size() / 2], us[us.size() * 9 / 10]);
    }
  }
  std::printf("\n");
}

void PrintLoad(const char* when) {
  double load = 0;
  if (getloadavg(&load, 1) == 1) std::printf("load average %s: %.2f\n", when, load);
  std::fflush(stdout);
}

void Measure(const Flags& flags, const std::filesystem::path& folder) {
  std::filesystem::create_directory(folder / "store");
  std::filesystem::create_directory(folder / "gloo");
  const auto rank_main = [&](int rank) {
    try {
      test::FileHost host({rank, flags.ranks, rank, flags.ranks}, folder / "store");
      MeasureRank(flags, host, folder / "gloo");
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
  };
  PrintLoad("before");
  ThrowIfError(RunRankProcesses(flags.ranks, std::chrono::seconds(flags.timeout_s), rank_main));
  PrintLoad("after");
  test::FileHost host({}, folder / "store");
  PrintTable(flags, host);
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("All-reduce through a communicator plugin against gloo's own algorithms");
  app.option_defaults()->always_capture_default();
  app.add_option("--plugin", flags.plugin, "library of the communicator");
  app.add_option("--ranks", flags.ranks)->check(CLI::Range(2, kMaxRanks));
  app.add_option("--bytes", flags.bytes, "sizes of the arrays, with commas between them")
      ->delimiter(',')
      ->check(CLI::Range(4, 1 << 30));
  app.add_option("--iterations", flags.iterations, "of sizes up to 64 KiB; fewer of larger ones")
      ->check(CLI::Range(kRounds, 1000000));
  app.add_option("--timeout-s", flags.timeout_s, "of the whole run")->check(CLI::Range(1, 86400));
  CLI11_PARSE(app, argc, argv);
  std::string folder = (std::filesystem::temp_directory_path() / "all_reduce.XXXXXX").string();
  if (!mkdtemp(folder.data())) {
    std::perror("cannot make a folder for the ranks to meet in");
    return 1;
  }
  int code = 0;
  try {
    Measure(flags, folder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    code = 1;
  }
  std::filesystem::remove_all(folder);
  return code;
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  return engine::bench::Main(argc, argv);
}
