// trace  = {"traceEvents": [event*], "engine": {"format": 1, "metadata": {}, "ranks": [rank*]}}
// rank   = {"rank", "world_size", "clock_offset_ns", "clock_error_ns", "dropped", "tasks": [task*],
//           "spans": [span*]}
// span   = kind, task, step, begin, ready, wire, length       seven numbers of one flat list
//
// `task` is null for none; `ready` and `wire` are after `begin`, or null when the span has 0 there.
// The events come first: a viewer need not know the rest.

#include <algorithm>
#include <cinttypes>

#include "tools/trace/chrome_events.h"
#include "tools/trace/trace_format.h"

namespace engine {
namespace {

void WriteIds(const char* key, const std::vector<uint32_t>& ids, TextWriter& out) {
  if (ids.empty()) return;
  out.Print(",\"%s\":[", key);
  for (size_t i = 0; i < ids.size(); ++i) out.Print("%s%u", i > 0 ? "," : "", ids[i]);
  out.Text("]");
}

void WriteTask(const TraceTask& task, TextWriter& out) {
  out.Text("{\"name\":");
  out.Quoted(task.name);
  out.Print(",\"kind\":\"%s\",\"lane\":\"%s\",\"transfer\":\"%s\"", Name(task.kind),
            task.lane == Lane::kIo ? "io" : "compute", Name(task.transfer));
  if (task.unit != UINT32_MAX) out.Print(",\"unit\":%u", task.unit);
  if (task.needed_by != UINT32_MAX) out.Print(",\"needed_by\":%u", task.needed_by);
  out.Print(",\"size_bytes\":%" PRIu64, task.size_bytes);
  WriteIds("depends_on", task.depends_on, out);
  WriteIds("depends_on_last", task.depends_on_last, out);
  out.Text("}");
}

void WriteSpan(const Span& span, TextWriter& out) {
  const auto optional = [&](bool there, int64_t value) {
    there ? out.Print(",%" PRId64, value) : out.Text(",null");
  };
  out.Print("%u", static_cast<uint32_t>(span.kind));
  optional(span.task != kNoTask, span.task);
  out.Print(",%" PRIu64 ",%" PRId64, span.step, span.begin_ns);
  optional(span.ready_ns != 0, span.ready_ns - span.begin_ns);
  optional(span.wire_ns != 0, span.wire_ns - span.begin_ns);
  out.Print(",%" PRId64, span.end_ns - span.begin_ns);
}

template <typename List, typename WriteOne>
void WriteList(const char* key, const List& list, const WriteOne& write_one, TextWriter& out) {
  out.Print(",\"%s\":[", key);
  for (size_t i = 0; i < list.size(); ++i) {
    out.Text(i > 0 ? ",\n" : "\n");
    write_one(list[i], out);
    out.FlushIfLarge();
  }
  out.Text("]");
}

void WriteRank(const RankTimeline& timeline, TextWriter& out) {
  out.Print("{\"rank\":%d,\"world_size\":%d,\"clock_offset_ns\":%" PRId64
            ",\"clock_error_ns\":%" PRId64 ",\"dropped\":%" PRIu64,
            timeline.rank, timeline.world_size, timeline.clock_offset_ns, timeline.clock_error_ns,
            timeline.dropped);
  WriteList("tasks", timeline.tasks, WriteTask, out);
  WriteList("spans", timeline.spans, WriteSpan, out);
  out.Text("}");
}

void WriteMetadata(const std::map<std::string, std::string>& metadata, TextWriter& out) {
  bool first = true;
  for (const auto& [key, value] : metadata) {
    out.Text(first ? "" : ",");
    out.Quoted(key);
    out.Text(":");
    out.Quoted(value);
    first = false;
  }
}

RankTimeline OnClockOfRankZero(const RankTimeline& timeline) {
  RankTimeline moved = timeline;
  MoveToClockOfRankZero(moved);
  return moved;
}

// When anything began, on the clock of rank 0.
int64_t FirstTime(const Trace& trace) {
  int64_t first = INT64_MAX;
  for (const RankTimeline& timeline : trace.ranks) {
    for (const Span& span : timeline.spans) {
      first = std::min(first, PhasesOf(span).ready_ns + timeline.clock_offset_ns);
    }
  }
  return first == INT64_MAX ? 0 : first;
}

}  // namespace

Status FormatTrace(const Trace& trace, const TextSink& sink) {
  for (const RankTimeline& timeline : trace.ranks) {
    ENGINE_RETURN_IF_ERROR(CheckTimeline(timeline));
  }
  TextWriter out(sink);
  out.Text("{\"traceEvents\":[");
  const int64_t base_ns = FirstTime(trace);
  bool first = true;
  uint64_t flow = 1;
  for (const RankTimeline& timeline : trace.ranks) {
    WriteChromeEvents(OnClockOfRankZero(timeline), base_ns, &first, &flow, out);
  }
  out.Text("\n],\n\"engine\":{\"format\":1,\"metadata\":{");
  WriteMetadata(trace.metadata, out);
  out.Text("}");
  WriteList("ranks", trace.ranks, WriteRank, out);
  out.Text("}}\n");
  return out.Finish();
}

}  // namespace engine
