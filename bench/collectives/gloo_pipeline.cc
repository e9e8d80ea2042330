// What a communicator makes of a link: all-reduces of one size, several in flight, each submitted
// by the callback of an earlier one, as training does.
//
//   cmake -S . -B build/bench -DENGINE_BENCH=ON -DCMAKE_BUILD_TYPE=Release
//   cmake --build build/bench --target gloo_pipeline
//   build/bench/bench/gloo_pipeline --bytes 1048576 --in-flight 4 --option io_threads=1
//   bench/collectives/gloo_link.sh 400 256 build/bench/bench/gloo_pipeline ...
//
// Ranks are processes of this host. One sum is compared with the exact one before anything is
// timed. Columns:
//
//   us         time / transfers, of the slowest rank
//   MB/s       bytes of the array / time, of the slowest rank: with two ranks also the bytes that
//              each direction of the link carries
//   % of link  the same against --link-mbit * 0.955, the share that is payload in packets of 1500
//   CPU s/GB   user and system time of a rank's communicator threads, without those of --busy
//   switches   voluntary context switches of a rank for each MiB of the array
//   compute %  with --busy: how fast a thread that computes all the time is, against no transfers
//   unsent     with --probe: bytes that one connection has accepted and nobody acknowledged,
//              median / maximum over samples (SIOCOUTQ)
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <thread>

#include "bench/collectives/gloo_chain.h"
#include "bench/collectives/gloo_load.h"
#include "bench/collectives/rank_processes.h"
#include "tests/conformance/communicator/file_host.h"
#include "tests/conformance/plugin_under_test.h"

namespace engine::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Flags {
  std::string plugin = ENGINE_TEST_PLUGIN_DIR "/libengine_tcp.so";
  int ranks = 2;
  std::vector<int64_t> bytes = {256 << 10, 1 << 20, 4 << 20};
  int in_flight = 4;
  double seconds = 2;        // of each size, about
  double expect_mb_s = 500;  // from which the number of transfers follows
  double link_mbit = 0;
  std::vector<std::string> options;  // name=value
  std::vector<std::string> netns;    // by rank
  std::vector<std::string> interfaces;
  bool busy = false;
  bool probe = false;
};

// Of one rank and size; travels through the store.
struct Figures {
  double seconds = 0;
  double cpu_seconds = 0;
  double switches = 0;
  double compute_share = 0;
  double unsent_median = 0;
  double unsent_max = 0;
};

double SecondsOf(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return SecondsOf(usage.ru_utime) + SecondsOf(usage.ru_stime);
}

void EnterNetwork(const std::string& name) {
  const int fd = open(("/var/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
    throw std::runtime_error("cannot enter the network namespace " + name + ": " +
                             std::strerror(errno));
  }
  close(fd);
}

// Waits in the store, asleep.
void Barrier(Host& host, int* uses) {
  const std::string name = "barrier/" + std::to_string((*uses)++) + "/";
  ThrowIfError(host.StoreSet(name + std::to_string(host.rank_info().rank), {}));
  for (int rank = 0; rank < host.rank_info().world_size; ++rank) {
    std::string empty;
    ThrowIfError(host.StoreGetString(name + std::to_string(rank), 2 * kTimeoutMs, &empty));
  }
}

void CheckSum(Communicator& communicator, const RankInfo& ranks, uint64_t* sequence) {
  std::vector<float> data(300007);
  const auto own = static_cast<float>(ranks.rank + 1);
  const auto all = static_cast<float>(ranks.world_size * (ranks.world_size + 1) / 2);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 4093 + 1) * own;
  Work* work = nullptr;
  ThrowIfError(communicator.Submit({.send = data.data(),
                                    .recv = data.data(),
                                    .count = static_cast<int64_t>(data.size()),
                                    .sequence = (*sequence)++},
                                   &work));
  const Status status = work->WaitHost(kTimeoutMs);
  work->Release();
  ThrowIfError(status);
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] != static_cast<float>(i % 4093 + 1) * all) {
      throw std::runtime_error("INVALID: element " + std::to_string(i) + " is wrong");
    }
  }
}

int64_t TransferCount(const Flags& flags, int64_t bytes) {
  const double count = flags.seconds * flags.expect_mb_s * 1e6 / static_cast<double>(bytes);
  return std::max<int64_t>(static_cast<int64_t>(count), 4 * flags.in_flight);
}

Figures Measure(const Flags& flags, Communicator& communicator, Host& host, int64_t bytes,
                uint64_t* sequence, int* barriers) {
  const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
  Pipeline(communicator, count, flags.in_flight, 2 * flags.in_flight, sequence).Run();
  Figures figures;
  std::unique_ptr<BusyThread> busy;
  double rounds_alone = 0;
  if (flags.busy) {
    busy = std::make_unique<BusyThread>();
    Barrier(host, barriers);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const double before = busy->rounds();
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    rounds_alone =
        (busy->rounds() - before) / std::chrono::duration<double>(Clock::now() - start).count();
  }
  Pipeline pipeline(communicator, count, flags.in_flight, TransferCount(flags, bytes), sequence);
  Barrier(host, barriers);
  std::unique_ptr<Probe> probe;
  if (flags.probe) probe = std::make_unique<Probe>();
  rusage usage_before{}, usage_after{};
  getrusage(RUSAGE_SELF, &usage_before);
  const double cpu_before = CpuSeconds(RUSAGE_SELF) - (busy ? busy->cpu_seconds() : 0);
  const double rounds_before = busy ? busy->rounds() : 0;
  const auto start = Clock::now();
  pipeline.Run();
  figures.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  figures.cpu_seconds = CpuSeconds(RUSAGE_SELF) - (busy ? busy->cpu_seconds() : 0) - cpu_before;
  getrusage(RUSAGE_SELF, &usage_after);
  figures.switches = static_cast<double>(usage_after.ru_nvcsw - usage_before.ru_nvcsw);
  if (busy) {
    figures.compute_share = (busy->rounds() - rounds_before) / figures.seconds / rounds_alone;
  }
  if (probe) {
    const std::vector<double> samples = probe->Stop();
    figures.unsent_median = samples[samples.size() / 2];
    figures.unsent_max = samples.back();
  }
  Barrier(host, barriers);
  return figures;
}

std::string Key(int64_t bytes, int rank) {
  return "figures/" + std::to_string(bytes) + "/" + std::to_string(rank);
}

void MeasureRank(const Flags& flags, Host& host) {
  const auto rank = static_cast<size_t>(host.rank_info().rank);
  if (!flags.netns.empty()) EnterNetwork(flags.netns.at(rank));
  test::OptionValues::Overrides options;
  for (const std::string& option : flags.options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos) throw std::runtime_error("'" + option + "' has no '='");
    options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  if (!flags.interfaces.empty()) options["interface"] = flags.interfaces.at(rank);
  const auto library = test::PluginUnderTest::Load(flags.plugin);
  ThrowIfError(library.status());
  const auto created = library->Create<Communicator>(host, options);
  ThrowIfError(created.status());
  uint64_t sequence = 0;
  int barriers = 0;
  CheckSum(**created, host.rank_info(), &sequence);
  for (const int64_t bytes : flags.bytes) {
    const Figures figures = Measure(flags, **created, host, bytes, &sequence, &barriers);
    ThrowIfError(host.StoreSet(Key(bytes, host.rank_info().rank),
                               {reinterpret_cast<const uint8_t*>(&figures), sizeof(figures)}));
  }
  Barrier(host, &barriers);
}

void PrintLine(const Flags& flags, int64_t bytes, const std::vector<Figures>& ranks) {
  Figures worst, sum;
  for (const Figures& rank : ranks) {
    worst.seconds = std::max(worst.seconds, rank.seconds);
    worst.unsent_median = std::max(worst.unsent_median, rank.unsent_median);
    worst.unsent_max = std::max(worst.unsent_max, rank.unsent_max);
    sum.cpu_seconds += rank.cpu_seconds;
    sum.switches += rank.switches;
    sum.compute_share += rank.compute_share;
  }
  const auto size = static_cast<double>(ranks.size());
  const double payload = static_cast<double>(bytes * TransferCount(flags, bytes));
  const double mb_s = payload / worst.seconds / 1e6;
  const int64_t transfers = TransferCount(flags, bytes);
  std::printf("%9lld %9lld %9.1f %8.1f", static_cast<long long>(bytes),
              static_cast<long long>(transfers),
              worst.seconds / static_cast<double>(transfers) * 1e6, mb_s);
  if (flags.link_mbit > 0) std::printf(" %9.1f", 100 * mb_s * 8 / (0.955 * flags.link_mbit));
  std::printf(" %9.3f %9.1f", sum.cpu_seconds / size / payload * 1e9,
              sum.switches / size / payload * (1 << 20));
  if (flags.busy) std::printf(" %9.1f", 100 * sum.compute_share / size);
  if (flags.probe) std::printf(" %8.0f /%8.0f", worst.unsent_median, worst.unsent_max);
  std::printf("\n");
}

void Print(const Flags& flags, Host& host) {
  std::printf("%d ranks, %d in flight", flags.ranks, flags.in_flight);
  for (const std::string& option : flags.options) std::printf(", %s", option.c_str());
  std::printf("\n%9s %9s %9s %8s", "bytes", "transfers", "us", "MB/s");
  if (flags.link_mbit > 0) std::printf(" %9s", "% of link");
  std::printf(" %9s %9s", "CPU s/GB", "switches");
  if (flags.busy) std::printf(" %9s", "compute %");
  if (flags.probe) std::printf(" %18s", "unsent");
  std::printf("\n");
  for (const int64_t bytes : flags.bytes) {
    std::vector<Figures> ranks(static_cast<size_t>(flags.ranks));
    for (int rank = 0; rank < flags.ranks; ++rank) {
      std::string text;
      ThrowIfError(host.StoreGetString(Key(bytes, rank), 0, &text));
      std::memcpy(&ranks[static_cast<size_t>(rank)], text.data(), sizeof(Figures));
    }
    PrintLine(flags, bytes, ranks);
  }
}

int RunAll(const Flags& flags, const std::filesystem::path& folder) {
  const auto rank_main = [&](int rank) {
    try {
      test::FileHost host({rank, flags.ranks, rank, flags.ranks}, folder);
      MeasureRank(flags, host);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      return 1;
    }
  };
  try {
    ThrowIfError(RunRankProcesses(flags.ranks, std::chrono::seconds(300), rank_main));
    test::FileHost host({}, folder);
    Print(flags, host);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("What a communicator makes of a link");
  app.option_defaults()->always_capture_default();
  app.add_option("--plugin", flags.plugin, "library of the communicator");
  app.add_option("--ranks", flags.ranks)->check(CLI::Range(2, 64));
  app.add_option("--bytes", flags.bytes, "sizes of the arrays, with commas between them")
      ->delimiter(',')
      ->check(CLI::Range(4, 1 << 30));
  app.add_option("--in-flight", flags.in_flight)->check(CLI::Range(1, 1024));
  app.add_option("--seconds", flags.seconds, "of each size, if --expect-mb-s is right");
  app.add_option("--expect-mb-s", flags.expect_mb_s);
  app.add_option("--link-mbit", flags.link_mbit, "rate of the link, for a column");
  app.add_option("--option", flags.options, "name=value, of the plugin; may be repeated");
  app.add_option("--netns", flags.netns, "network namespace of each rank")->delimiter(',');
  app.add_option("--interfaces", flags.interfaces, "option interface of each rank")->delimiter(',');
  app.add_flag("--busy", flags.busy, "with a thread on each rank that computes");
  app.add_flag("--probe", flags.probe, "samples what the kernel holds");
  CLI11_PARSE(app, argc, argv);
  std::string folder = (std::filesystem::temp_directory_path() / "gloo_pipeline.XXXXXX").string();
  if (!mkdtemp(folder.data())) {
    std::perror("cannot make a folder for the ranks to meet in");
    return 1;
  }
  const int code = RunAll(flags, folder);
  std::filesystem::remove_all(folder);
  return code;
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  return engine::bench::Main(argc, argv);
}
