// All-reduce by the plugin nccl beside plain calls of NCCL, between GPUs of one host: microseconds
// of the host until the call returns, and until the host knows of the end.
//
//   cmake --build build/release --target nccl_overhead engine_nccl
//   RANK=0 WORLD_SIZE=2 build/release/bench/nccl_overhead
//     build/release/lib/engine/plugins/libengine_nccl.so ID_FILE [--max-ctas N] [--json]
//
// and the same with RANK=1 at the same time. Ranks meet in the folder ID_FILE.ranks, which rank 0
// makes and removes. Each rank uses the first GPU that CUDA_VISIBLE_DEVICES leaves it; ranks that
// share one need an NCCL_HOSTID of their own. WORLD_SIZE=1 is the default.
//
// The contenders take turns in blocks, in one process, and have communicators of one configuration.
// Sums are compared with the exact ones before anything is timed. "registered": in memory that NCCL
// gave and knows, else cudaMalloc's. Rank 0 prints medians; with --json one line per size, with the
// quantiles p10 and p90 too.
#include <sys/prctl.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/exit_code.h"
#include "bench/collectives/folder_meeting.h"
#include "bench/collectives/nccl_contenders.h"
#include "bench/statistics/summary.h"
#include "cuda_error.h"

namespace engine::bench {
namespace {

constexpr size_t kSizes[] = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20};
constexpr size_t kLargest = 64 << 20;
constexpr int kBlock = 10;                        // calls of a contender in a row
constexpr int kWarmUps = 2;                       // before them, not timed
constexpr int kLeastCalls = 3, kMostCalls = 200;  // of a contender
constexpr double kMicroseconds = 3e6;             // about the time that a size may take

struct Words {
  std::string plugin, id_file;
  int rank = 0, world_size = 1, max_ctas = 0;
  bool json = false;
};

std::optional<int> ToInt(const char* text) {
  int value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

Status Usage(const char* what) {
  return Status::Error(StatusCode::kInvalidArgument,
                       "%s; usage: RANK=r WORLD_SIZE=n nccl_overhead PLUGIN ID_FILE "
                       "[--max-ctas N] [--json]",
                       what);
}

Result<Words> Parse(int argc, char** argv) {
  Words words;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      words.json = true;
    } else if (word == "--max-ctas") {
      const std::optional<int> ctas = ++i < argc ? ToInt(argv[i]) : std::nullopt;
      if (!ctas || *ctas < 0 || *ctas > 64) return Usage("--max-ctas takes a number from 0 to 64");
      words.max_ctas = *ctas;
    } else if (word.starts_with("-")) {
      return Usage(std::string("there is no flag ").append(word).c_str());
    } else {
      paths.push_back(word);
    }
  }
  if (paths.size() != 2) return Usage("a PLUGIN and an ID_FILE are needed");
  words.plugin = std::filesystem::absolute(paths[0]);
  words.id_file = paths[1];
  const char* const rank = std::getenv("RANK");
  const char* const world_size = std::getenv("WORLD_SIZE");
  const std::optional<int> r = rank != nullptr ? ToInt(rank) : 0;
  const std::optional<int> n = world_size != nullptr ? ToInt(world_size) : 1;
  if (!r || !n || *r < 0 || *r >= *n) return Usage("RANK must be from 0 to WORLD_SIZE - 1");
  words.rank = *r;
  words.world_size = *n;
  return words;
}

Result<test::PluginUnderTest> LoadNccl(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(const test::PluginUnderTest plugin, test::PluginUnderTest::Load(path));
  if (plugin.name() == "nccl") return plugin;
  return Status::Error(StatusCode::kPlugin, "%s is the plugin %s, not nccl", path.c_str(),
                       plugin.name().c_str());
}

struct Lane {
  std::string name;
  NcclContender* contender = nullptr;
  float* data = nullptr;
  std::vector<double> call_us, total_us;
};

// Of cudaMalloc.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory() { (void)cudaFree(data_); }

  Status Allocate(size_t size_bytes) {
    return nccl::ToStatus(cudaMalloc(&data_, size_bytes), "memory of the GPU");
  }
  float* data() const { return static_cast<float*>(data_); }

 private:
  void* data_ = nullptr;
};

class Comparison {
 public:
  Comparison(Host& host, const Words& words) : host_(host), words_(words) {}

  Status Run() {
    ENGINE_ASSIGN_OR_RETURN(const auto plugin, LoadNccl(words_.plugin));
    ENGINE_RETURN_IF_ERROR(Start(plugin));
    PrintHead();
    for (const size_t bytes : kSizes) {
      ENGINE_RETURN_IF_ERROR(Check(bytes));
      ENGINE_RETURN_IF_ERROR(Time(bytes));
      if (host_.rank_info().rank == 0) Print(bytes);
    }
    return {};
  }

 private:
  Status Start(const test::PluginUnderTest& plugin);
  Status AddRegistered();
  Status Check(size_t bytes);
  Status Time(size_t bytes);
  Result<int> ChooseCalls(size_t bytes, double turn_us);
  Result<double> RunBlock(Lane& lane, size_t bytes, int calls, bool timed);
  void PrintHead() const;
  void Print(size_t bytes) const;

  Host& host_;
  const Words& words_;
  std::shared_ptr<const nccl::Library> library_;
  // Destroyed from the last to the first: to free memory is to wait for all that is on the GPU, and
  // after a failure what plain calls left there ends only with their communicator. The plugin has
  // ended its own by then.
  GpuMemory memory_;
  std::unique_ptr<PluginNccl> plugin_;
  std::unique_ptr<PlainNccl> plain_;
  std::vector<Lane> lanes_;
};

Status Comparison::Start(const test::PluginUnderTest& plugin) {
  ENGINE_ASSIGN_OR_RETURN(library_, nccl::Library::Open("libnccl.so.2"));
  ENGINE_RETURN_IF_ERROR(memory_.Allocate(kLargest));
  ENGINE_ASSIGN_OR_RETURN(plain_, PlainNccl::Create(host_, library_, words_.max_ctas));
  ENGINE_ASSIGN_OR_RETURN(plugin_, PluginNccl::Create(host_, plugin, words_.max_ctas));
  float* const data = memory_.data();
  lanes_ = {{"plain", plain_.get(), data, {}, {}}, {"plugin", plugin_.get(), data, {}, {}}};
  return AddRegistered();
}

Status Comparison::AddRegistered() {
  ENGINE_ASSIGN_OR_RETURN(float* const plain, plain_->Register(kLargest));
  ENGINE_ASSIGN_OR_RETURN(float* const plugin, plugin_->Register(kLargest));
  if (plain == nullptr || plugin == nullptr) {
    std::fprintf(stderr, "nccl_overhead: NCCL gives no memory of its own: left out\n");
    return {};
  }
  lanes_.push_back({"plain_registered", plain_.get(), plain, {}, {}});
  lanes_.push_back({"plugin_registered", plugin_.get(), plugin, {}, {}});
  return {};
}

// Element i of rank r is (i % 7 + 1) * (r + 1). Leaves zeroes, whose sums stay so.
Status Comparison::Check(size_t bytes) {
  const RankInfo ranks = host_.rank_info();
  std::vector<float> values(bytes / sizeof(float));
  const auto expected = static_cast<float>(ranks.world_size * (ranks.world_size + 1) / 2);
  for (Lane& lane : lanes_) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i % 7 + 1) * static_cast<float>(ranks.rank + 1);
    }
    ENGINE_RETURN_IF_ERROR(nccl::ToStatus(
        cudaMemcpy(lane.data, values.data(), bytes, cudaMemcpyHostToDevice), "a copy"));
    ENGINE_RETURN_IF_ERROR(nccl::ToStatus(cudaDeviceSynchronize(), "a copy"));
    ENGINE_RETURN_IF_ERROR(
        lane.contender->AllReduce(lane.data, static_cast<int64_t>(values.size())).status());
    ENGINE_RETURN_IF_ERROR(nccl::ToStatus(
        cudaMemcpy(values.data(), lane.data, bytes, cudaMemcpyDeviceToHost), "a copy"));
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] == static_cast<float>(i % 7 + 1) * expected) continue;
      return Status::Error(StatusCode::kBadData, "%s: element %zu of %zu bytes is %g, not %g",
                           lane.name.c_str(), i, bytes, static_cast<double>(values[i]),
                           static_cast<double>(static_cast<float>(i % 7 + 1) * expected));
    }
    ENGINE_RETURN_IF_ERROR(nccl::ToStatus(cudaMemset(lane.data, 0, bytes), "clearing memory"));
    ENGINE_RETURN_IF_ERROR(nccl::ToStatus(cudaDeviceSynchronize(), "clearing memory"));
  }
  return {};
}

Status Comparison::Time(size_t bytes) {
  double turn_us = 0;  // of one call of every contender
  for (Lane& lane : lanes_) {
    lane.call_us.clear();
    lane.total_us.clear();
    ENGINE_ASSIGN_OR_RETURN(const double us, RunBlock(lane, bytes, 1, false));
    turn_us += us;
  }
  ENGINE_ASSIGN_OR_RETURN(const int calls, ChooseCalls(bytes, turn_us));
  const int warm_ups = std::min(kWarmUps, calls / kLeastCalls);
  for (int done = 0; done < calls; done += kBlock) {
    for (Lane& lane : lanes_) {
      ENGINE_RETURN_IF_ERROR(RunBlock(lane, bytes, warm_ups, false).status());
      ENGINE_RETURN_IF_ERROR(RunBlock(lane, bytes, std::min(kBlock, calls - done), true).status());
    }
  }
  return {};
}

// Rank 0 decides for all.
Result<int> Comparison::ChooseCalls(size_t bytes, double turn_us) {
  const std::string key = "calls/" + std::to_string(bytes);
  if (host_.rank_info().rank == 0) {
    const double calls = std::clamp<double>(kMicroseconds / turn_us, kLeastCalls, kMostCalls);
    const std::string text = std::to_string(static_cast<int>(calls));
    ENGINE_RETURN_IF_ERROR(
        host_.StoreSet(key, {reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
    return static_cast<int>(calls);
  }
  std::string text;
  ENGINE_RETURN_IF_ERROR(host_.StoreGetString(key, kTransferTimeoutMs, &text));
  return ToInt(text.c_str()).value_or(kLeastCalls);
}

// The microseconds of all calls.
Result<double> Comparison::RunBlock(Lane& lane, size_t bytes, int calls, bool timed) {
  double sum_us = 0;
  for (int i = 0; i < calls; ++i) {
    ENGINE_ASSIGN_OR_RETURN(const CallTime time,
                            lane.contender->AllReduce(lane.data, static_cast<int64_t>(bytes / 4)));
    sum_us += time.total_us;
    if (!timed) continue;
    lane.call_us.push_back(time.call_us);
    lane.total_us.push_back(time.total_us);
  }
  return sum_us;
}

void Comparison::PrintHead() const {
  const RankInfo ranks = host_.rank_info();
  if (words_.json || ranks.rank != 0) return;
  std::printf("%d ranks, NCCL %d; microseconds, medians: of the call / to the end\n%9s %5s",
              ranks.world_size, library_->version(), "bytes", "calls");
  for (const Lane& lane : lanes_) std::printf(" %20s", lane.name.c_str());
  std::printf("\n");
}

void Comparison::Print(size_t bytes) const {
  const size_t calls = lanes_.front().call_us.size();
  std::printf(words_.json ? "{\"bytes\": %zu, \"calls\": %zu" : "%9zu %5zu", bytes, calls);
  for (const Lane& lane : lanes_) {
    const Summary call = Summarize(lane.call_us), total = Summarize(lane.total_us);
    if (!words_.json) {
      std::printf(" %9.1f /%9.1f", call.median, total.median);
      continue;
    }
    const char* const name = lane.name.c_str();
    for (const auto& [what, summary] : {std::pair{"call_us", &call}, std::pair{"us", &total}}) {
      std::printf(", \"%s_%s\": %.2f, \"%s_%s_p10\": %.2f, \"%s_%s_p90\": %.2f", name, what,
                  summary->median, name, what, summary->p10, name, what, summary->p90);
    }
  }
  std::printf(words_.json ? "}\n" : "\n");
  std::fflush(stdout);
}

Status Main(int argc, char** argv) {
  ENGINE_ASSIGN_OR_RETURN(const Words words, Parse(argc, argv));
  // Before anybody waits for this rank.
  ENGINE_RETURN_IF_ERROR(LoadNccl(words.plugin).status());
  FolderMeeting meeting(words.id_file + ".ranks",
                        {.rank = words.rank, .world_size = words.world_size}, kMeetingTimeoutMs);
  ENGINE_ASSIGN_OR_RETURN(const int32_t gpu, nccl::ChooseGpu(meeting.host()));
  ENGINE_RETURN_IF_ERROR(nccl::UseGpu(gpu));
  (void)prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);  // as the plugin's watchdog: its pauses are short
  ENGINE_RETURN_IF_ERROR(meeting.Open());
  ENGINE_RETURN_IF_ERROR(Comparison(meeting.host(), words).Run());
  meeting.Close();
  return {};
}

}  // namespace
}  // namespace engine::bench

int main(int argc, char** argv) {
  const engine::Status status = engine::bench::Main(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "nccl_overhead: %s\n", status.message());
  return engine::ExitCode(status.code());
}
