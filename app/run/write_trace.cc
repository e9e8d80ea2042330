#include "app/run/write_trace.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "core/base/clock.h"

namespace engine::run {
namespace {

// A value of the store may have 64 MiB, but one that large would hold up its server.
constexpr size_t kChunkBytes = 4 << 20;
constexpr size_t kRoundTrips = 8;
// For a rank that may be lost. The others have come to the end of the run together.
constexpr int64_t kLostRankTimeoutMs = 3000;

// The keys, by the rank they are of:
//
//   trace/R/host      where it runs
//   trace/R/ask/K     the K-th question of rank R for the time
//   trace/R/tell/K    the answer of rank 0: its clock in nanoseconds
//   trace/R/part/K    the K-th part of the timeline of rank R: kChunkBytes, the last one less
class TraceExchange {
 public:
  TraceExchange(base::RankContext& rank, const TraceClock& clock, int64_t timeout_ms)
      : rank_(rank), clock_(clock), timeout_ms_(timeout_ms) {}

  Status Send(trace::RankTimeline own) {
    const int32_t self = rank_.info.rank;
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(Key(self, "host"), clock_.host));
    ENGINE_ASSIGN_OR_RETURN(const std::string host_of_first, Get(Key(0, "host")));
    if (clock_.host != host_of_first) ENGINE_RETURN_IF_ERROR(AskTime(&own));
    const std::string bytes = trace::SerializeTimeline(own);
    for (size_t part = 0; part * kChunkBytes <= bytes.size(); ++part) {
      ENGINE_RETURN_IF_ERROR(
          rank_.store.Set(Key(self, "part", part),
                          std::string_view(bytes).substr(part * kChunkBytes, kChunkBytes)));
    }
    return {};
  }

  // On rank 0: `timelines` gets those of the other ranks, in order; of ranks that may be lost only
  // of those that come.
  Status Receive(bool may_lack_ranks, std::vector<trace::RankTimeline>* timelines) {
    ENGINE_RETURN_IF_ERROR(rank_.store.Set(Key(0, "host"), clock_.host));
    std::vector<int32_t> present;
    for (int32_t other = 1; other < rank_.info.world_size; ++other) {
      const auto host_of_other =
          rank_.store.Get(Key(other, "host"), may_lack_ranks ? kLostRankTimeoutMs : timeout_ms_);
      if (may_lack_ranks && host_of_other.status().code() == StatusCode::kTimeout) continue;
      if (!host_of_other.ok()) return host_of_other.status();
      if (*host_of_other != clock_.host) ENGINE_RETURN_IF_ERROR(TellTime(other));
      present.push_back(other);
    }
    for (const int32_t other : present) {
      ENGINE_ASSIGN_OR_RETURN(const std::string bytes, ReceiveBytes(other));
      auto timeline = trace::ParseTimeline(bytes);
      if (!timeline.ok()) {
        return timeline.status().WithContext("the timeline of rank %d", other).WithRank(other);
      }
      timelines->push_back(std::move(*timeline));
    }
    return {};
  }

 private:
  static std::string Key(int32_t rank, const char* leaf) {
    return fmt::format("trace/{}/{}", rank, leaf);
  }
  static std::string Key(int32_t rank, const char* leaf, size_t number) {
    return fmt::format("trace/{}/{}/{}", rank, leaf, number);
  }
  Result<std::string> Get(const std::string& key) { return rank_.store.Get(key, timeout_ms_); }

  // Each answer was given at some time between question and arrival; the middle is wrong by at most
  // half of that, and least so for the shortest way.
  Status AskTime(trace::RankTimeline* own) {
    const int32_t self = rank_.info.rank;
    int64_t shortest_ns = INT64_MAX;
    for (size_t trip = 0; trip < kRoundTrips; ++trip) {
      const int64_t asked_ns = clock_.now_ns();
      ENGINE_RETURN_IF_ERROR(rank_.store.Set(Key(self, "ask", trip), ""));
      ENGINE_ASSIGN_OR_RETURN(const std::string answer, Get(Key(self, "tell", trip)));
      const int64_t took_ns = clock_.now_ns() - asked_ns;
      if (took_ns >= shortest_ns) continue;
      shortest_ns = took_ns;
      own->clock_error_ns = (took_ns + 1) / 2;
      own->clock_offset_ns = std::strtoll(answer.c_str(), nullptr, 10) - (asked_ns + took_ns / 2);
    }
    return {};
  }

  Status TellTime(int32_t other) {
    for (size_t trip = 0; trip < kRoundTrips; ++trip) {
      ENGINE_RETURN_IF_ERROR(Get(Key(other, "ask", trip)).status());
      ENGINE_RETURN_IF_ERROR(
          rank_.store.Set(Key(other, "tell", trip), std::to_string(clock_.now_ns())));
    }
    return {};
  }

  Result<std::string> ReceiveBytes(int32_t other) {
    std::string bytes;
    for (size_t part = 0; bytes.size() == part * kChunkBytes; ++part) {
      ENGINE_ASSIGN_OR_RETURN(const std::string piece, Get(Key(other, "part", part)));
      bytes += piece;
    }
    return bytes;
  }

  base::RankContext& rank_;
  const TraceClock& clock_;
  const int64_t timeout_ms_;  // of each wait for another rank
};

}  // namespace

TraceClock MonotonicTraceClock(int32_t rank) {
  // The same for all processes since the host was started, but a container may have a clock of its
  // own. Without it a rank counts as a host of its own.
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  TraceClock clock;
  std::getline(file, clock.host);
  if (clock.host.empty()) clock.host = "rank " + std::to_string(rank);
  std::error_code none;
  clock.host.append(" ").append(std::filesystem::read_symlink("/proc/self/ns/time", none).string());
  clock.now_ns = base::NowNs;
  return clock;
}

trace::RankTimeline TimelineOf(const exec::Executor& executor, const RankInfo& rank) {
  const trace::SpanRecorder recorded = executor.recorded();
  trace::RankTimeline timeline{.rank = rank.rank,
                               .world_size = rank.world_size,
                               .dropped = recorded.dropped(),
                               .spans = recorded.InOrder()};
  for (const exec::Task& task : executor.tasks().tasks) {
    timeline.tasks.push_back({.name = task.name,
                              .kind = task.info.kind,
                              .lane = task.info.lane,
                              .transfer = task.info.transfer,
                              .bucket = task.info.bucket,
                              .needed_by = task.info.needed_by,
                              .size_bytes = task.info.size_bytes});
  }
  for (const exec::Task& task : executor.tasks().tasks) {
    const uint32_t id = task.info.id;
    for (uint32_t next : task.successors) timeline.tasks[next].depends_on.push_back(id);
    for (uint32_t next : task.next_successors) timeline.tasks[next].depends_on_last.push_back(id);
  }
  return timeline;
}

Status WriteRunTrace(const std::string& path, base::RankContext& rank, trace::RankTimeline own,
                     const std::map<std::string, std::string>& metadata, int64_t timeout_ms,
                     bool may_lack_ranks, const TraceClock* clock) {
  own.rank = rank.info.rank;
  own.world_size = rank.info.world_size;
  own.clock_offset_ns = own.clock_error_ns = 0;
  const TraceClock monotonic = MonotonicTraceClock(rank.info.rank);
  TraceExchange exchange(rank, clock != nullptr ? *clock : monotonic, timeout_ms);
  if (rank.info.rank != 0) return exchange.Send(std::move(own)).WithContext("trace");
  trace::Trace trace{.metadata = metadata, .ranks = {}};
  trace.ranks.push_back(std::move(own));
  ENGINE_RETURN_IF_ERROR(exchange.Receive(may_lack_ranks, &trace.ranks).WithContext("trace"));
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::AtomicFile> file,
                          checkpoint::AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(trace::FormatTrace(
      trace, [&](std::string_view text) { return file->Write(text.data(), text.size()); }));
  return file->Commit();
}

}  // namespace engine::run
