#include "tools/trace/timeline_times.h"

#include <algorithm>
#include <cinttypes>
#include <vector>

namespace engine::trace {
namespace {

// 36 years; sums and differences of two such times still fit.
constexpr int64_t kMaxTimeNs = int64_t{1} << 60;
constexpr uint64_t kMaxStep = uint64_t{1} << 48;

bool InRange(int64_t time_ns) {
  return time_ns >= -kMaxTimeNs && time_ns <= kMaxTimeNs;
}

template <typename Enum>
bool AtMost(Enum value, Enum largest) {
  return static_cast<uint32_t>(value) <= static_cast<uint32_t>(largest);
}

Status CheckTask(const RankTimeline& timeline, size_t id) {
  const TraceTask& task = timeline.tasks[id];
  if (!AtMost(task.kind, TaskKind::kUpdate) || !AtMost(task.lane, Lane::kIo) ||
      !AtMost(task.transfer, TransferKind::kPull)) {
    return Status::Error(StatusCode::kBadData, "task %zu of rank %d is of an unknown kind", id,
                         timeline.rank);
  }
  const auto beyond = [](const std::vector<uint32_t>& tasks, size_t end) {
    return std::any_of(tasks.begin(), tasks.end(), [&](uint32_t other) { return other >= end; });
  };
  if (beyond(task.depends_on, id) || beyond(task.depends_on_last, timeline.tasks.size())) {
    return Status::Error(StatusCode::kBadData,
                         "task %zu of rank %d depends on one that cannot come before it", id,
                         timeline.rank);
  }
  return {};
}

Status CheckSpan(const RankTimeline& timeline, size_t index) {
  const Span& span = timeline.spans[index];
  const bool has_task = span.task < timeline.tasks.size();
  const bool task_ok = has_task || (span.task == kNoTask && span.kind != SpanKind::kTask);
  if (!AtMost(span.kind, SpanKind::kFlush) || !task_ok || span.step > kMaxStep) {
    return Status::Error(StatusCode::kBadData, "span %zu of rank %d is of an unknown kind or task",
                         index, timeline.rank);
  }
  if (!InRange(span.ready_ns) || !InRange(span.begin_ns) || !InRange(span.wire_ns) ||
      !InRange(span.end_ns) || span.end_ns < span.begin_ns) {
    return Status::Error(StatusCode::kBadData, "span %zu of rank %d has impossible times", index,
                         timeline.rank);
  }
  return {};
}

}  // namespace

Status CheckTimeline(const RankTimeline& timeline) {
  if (timeline.world_size < 1 || timeline.rank < 0 || timeline.rank >= timeline.world_size) {
    return Status::Error(StatusCode::kBadData, "there is no rank %d in a run of %d ranks",
                         timeline.rank, timeline.world_size);
  }
  if (!InRange(timeline.clock_offset_ns) || !InRange(timeline.clock_error_ns) ||
      timeline.clock_error_ns < 0) {
    return Status::Error(StatusCode::kBadData, "the clock of rank %d is off by %" PRId64 " ns",
                         timeline.rank, timeline.clock_offset_ns);
  }
  for (size_t id = 0; id < timeline.tasks.size(); ++id) {
    ENGINE_RETURN_IF_ERROR(CheckTask(timeline, id));
  }
  for (size_t index = 0; index < timeline.spans.size(); ++index) {
    ENGINE_RETURN_IF_ERROR(CheckSpan(timeline, index));
  }
  return {};
}

void MoveToClockOfRankZero(RankTimeline& timeline) {
  const int64_t offset = timeline.clock_offset_ns;
  for (Span& span : timeline.spans) {
    // 0 says that it is not known.
    if (span.ready_ns != 0) span.ready_ns += offset;
    if (span.wire_ns != 0) span.wire_ns += offset;
    span.begin_ns += offset;
    span.end_ns += offset;
  }
  timeline.clock_offset_ns = 0;
}

TransferPhases PhasesOf(const Span& span) {
  TransferPhases phases;
  phases.begin_ns = span.begin_ns;
  phases.end_ns = span.end_ns;
  phases.ready_ns = span.ready_ns == 0 ? span.begin_ns : std::min(span.ready_ns, span.begin_ns);
  phases.wire_ns =
      span.wire_ns == 0 ? span.begin_ns : std::clamp(span.wire_ns, span.begin_ns, span.end_ns);
  return phases;
}

}  // namespace engine::trace
