#include "app/run/write_trace.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "app/checkpoint/atomic_file.h"
#include "core/base/deadline.h"
#include "tools/trace/trace_format.h"

namespace engine::run {
namespace {

// A value of the store may have 64 MiB, but one that large would hold up its server.
constexpr size_t kChunkBytes = 4 << 20;
constexpr int kRoundTrips = 8;
// For a rank that may be lost. The others have come to the end of the run together.
constexpr int64_t kLostRankTimeoutMs = 3000;

// The keys, by the rank they are of:
//
//   trace/R/host          where it runs
//   trace/R/ask/K         the K-th question of rank R for the time
//   trace/R/tell/K        the answer of rank 0: its clock in nanoseconds
//   trace/R/bytes         size of the timeline of rank R
//   trace/R/part/K        its K-th part
class TraceExchange {
 public:
  TraceExchange(base::RankContext& rank, const TraceClock& clock, int64_t timeout_ms)
      : rank_(rank), clock_(clock), deadline_(base::DeadlineIn(timeout_ms)) {}

  Status Send(trace::RankTimeline own) {
    const int32_t self = rank_.info.rank;
    ENGINE_RETURN_IF_ERROR(Set(self, "host", clock_.host));
    ENGINE_ASSIGN_OR_RETURN(const std::string host_of_first, Get(0, "host"));
    if (clock_.host != host_of_first) ENGINE_RETURN_IF_ERROR(AskTime(&own));
    const std::string bytes = trace::SerializeTimeline(own);
    ENGINE_RETURN_IF_ERROR(Set(self, "bytes", std::to_string(bytes.size())));
    for (size_t begin = 0, part = 0; begin < bytes.size(); begin += kChunkBytes, ++part) {
      ENGINE_RETURN_IF_ERROR(
          Set(self, Numbered("part", part), std::string_view(bytes).substr(begin, kChunkBytes)));
    }
    return {};
  }

  // On rank 0: `timelines` gets those of the other ranks, in order; of ranks that may be lost only
  // of those that come.
  Status Receive(bool may_lack_ranks, std::vector<trace::RankTimeline>* timelines) {
    ENGINE_RETURN_IF_ERROR(Set(0, "host", clock_.host));
    std::vector<int32_t> present;
    for (int32_t other = 1; other < rank_.info.world_size; ++other) {
      const auto host_of_other = may_lack_ranks
                                     ? rank_.store.Get(Key(other, "host"), kLostRankTimeoutMs)
                                     : Get(other, "host");
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
  static std::string Numbered(const char* leaf, size_t number) {
    return std::string(leaf).append("/").append(std::to_string(number));
  }
  static std::string Key(int32_t rank, const std::string& leaf) {
    return std::string("trace/").append(std::to_string(rank)).append("/").append(leaf);
  }
  Status Set(int32_t rank, const std::string& leaf, std::string_view value) {
    return rank_.store.Set(Key(rank, leaf), value);
  }
  Result<std::string> Get(int32_t rank, const std::string& leaf) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    return rank_.store.Get(Key(rank, leaf), std::max<int64_t>(left.count(), 0));
  }

  // Each answer was given at some time between question and arrival; the middle is wrong by at most
  // half of that, and least so for the shortest way.
  Status AskTime(trace::RankTimeline* own) {
    int64_t shortest_ns = INT64_MAX;
    for (int trip = 0; trip < kRoundTrips; ++trip) {
      const int64_t asked_ns = clock_.now_ns();
      ENGINE_RETURN_IF_ERROR(Set(rank_.info.rank, Numbered("ask", trip), ""));
      ENGINE_ASSIGN_OR_RETURN(const std::string answer,
                              Get(rank_.info.rank, Numbered("tell", trip)));
      const int64_t heard_ns = clock_.now_ns();
      if (heard_ns - asked_ns >= shortest_ns) continue;
      shortest_ns = heard_ns - asked_ns;
      own->clock_error_ns = (shortest_ns + 1) / 2;
      own->clock_offset_ns =
          std::strtoll(answer.c_str(), nullptr, 10) - (asked_ns + shortest_ns / 2);
    }
    return {};
  }

  Status TellTime(int32_t other) {
    for (int trip = 0; trip < kRoundTrips; ++trip) {
      ENGINE_ASSIGN_OR_RETURN(std::string asked, Get(other, Numbered("ask", trip)));
      ENGINE_RETURN_IF_ERROR(Set(other, Numbered("tell", trip), std::to_string(clock_.now_ns())));
    }
    return {};
  }

  Result<std::string> ReceiveBytes(int32_t other) {
    ENGINE_ASSIGN_OR_RETURN(const std::string size, Get(other, "bytes"));
    const uint64_t expected = std::strtoull(size.c_str(), nullptr, 10);
    std::string bytes;
    for (size_t part = 0; bytes.size() < expected; ++part) {
      ENGINE_ASSIGN_OR_RETURN(const std::string piece, Get(other, Numbered("part", part)));
      if (piece.empty()) break;  // ParseTimeline says what is wrong
      bytes += piece;
    }
    return bytes;
  }

  base::RankContext& rank_;
  const TraceClock& clock_;
  const base::TimePoint deadline_;
};

}  // namespace

TraceClock MonotonicTraceClock(int32_t rank) {
  // The same for all processes since the host was started, but a container may have a clock of its
  // own. Without it a rank counts as a host of its own.
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  TraceClock clock;
  std::getline(file, clock.host);
  if (clock.host.empty()) clock.host.append("rank ").append(std::to_string(rank));
  std::error_code none;
  clock.host.append(" ").append(std::filesystem::read_symlink("/proc/self/ns/time", none).string());
  clock.now_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  return clock;
}

Status WriteTrace(const std::string& path, const trace::Trace& trace) {
  ENGINE_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::AtomicFile> file,
                          checkpoint::AtomicFile::Create(path));
  ENGINE_RETURN_IF_ERROR(trace::FormatTrace(
      trace, [&](std::string_view text) { return file->Write(text.data(), text.size()); }));
  return file->Commit();
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
  return WriteTrace(path, trace);
}

}  // namespace engine::run
