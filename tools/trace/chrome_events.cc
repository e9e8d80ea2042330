#include "tools/trace/chrome_events.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tools/trace/intervals.h"
#include "tools/trace/timeline_index.h"

namespace engine::trace {
namespace {

using Json = nlohmann::ordered_json;

// A process per rank, a thread per row. Viewers treat process and thread 0 as special, and some
// take thread numbers for unique among all processes.
constexpr int64_t kRowsPerRank = 100000;

class RankEvents {
 public:
  RankEvents(const RankTimeline& timeline, int64_t base_ns, bool* first, uint64_t* flow,
             TextWriter& out)
      : index_(timeline),
        process_(int64_t{timeline.rank} + 1),
        base_ns_(base_ns),
        first_(first),
        flow_(flow),
        out_(out),
        next_row_(process_ * kRowsPerRank) {}

  void Write() {
    Meta("process_name", 0, {{"name", "rank " + std::to_string(index_.timeline().rank)}});
    Meta("process_sort_index", 0, {{"sort_index", process_}});
    WriteGroup("steps", index_.steps(), [&](const Span& s, int64_t row) {
      Slice("step " + std::to_string(s.step), s, {s.begin_ns, s.end_ns}, row);
    });
    WriteGroup("flushes", index_.flushes(), [&](const Span& s, int64_t row) {
      Slice("flush", s, {s.begin_ns, s.end_ns}, row);
    });
    WriteGroup("compute", index_.compute(), [&](const Span& s, int64_t row) {
      const TraceTask& task = index_.TaskOf(s);
      Slice(task.name, s, {s.begin_ns, s.end_ns}, row, {{"kind", Name(task.kind)}});
    });
    WriteGroup("waits", index_.waits(), [&](const Span& s, int64_t row) {
      const bool known = s.task != kNoTask;
      Slice(known ? "wait for " + index_.TaskOf(s).name : "wait", s, {s.begin_ns, s.end_ns}, row);
    });
    WriteGroup("transfers", index_.transfers(),
               [&](const Span& s, int64_t row) { WriteTransfer(s, row); });
    WriteQueue();
    for (const StallRecord& stall : index_.Stalls()) WriteFlows(stall);
  }

 private:
  // In microseconds with all nanoseconds.
  static double Time(int64_t time_ns) { return static_cast<double>(time_ns) / 1000; }

  void Event(const char* phase, int64_t row, const Json& rest) {
    Json event = {{"ph", phase}, {"pid", process_}, {"tid", row}};
    event.update(rest);
    out_.Text(*first_ ? "\n" : ",\n");
    out_.Json(event);
    *first_ = false;
  }

  void Meta(const char* name, int64_t row, Json args) {
    Event("M", row, {{"name", name}, {"args", std::move(args)}});
  }

  // Writes `spans`, which ascend by begin, on as many rows as they need.
  template <typename WriteOne>
  void WriteGroup(const char* name, const std::vector<const Span*>& spans,
                  const WriteOne& write_one) {
    std::vector<Interval> extents;
    for (const Span* span : spans) extents.push_back({span->begin_ns, span->end_ns});
    const std::vector<int64_t> rows = MakeRows(name, extents);
    for (size_t i = 0; i < spans.size(); ++i) {
      row_of_[spans[i]] = rows[i];
      write_one(*spans[i], rows[i]);
    }
  }

  // From ready to submission: so many at once that they would hide what is under way.
  void WriteQueue() {
    std::vector<const Span*> spans;
    for (const Span* span : index_.transfers()) {
      if (PhasesOf(*span).ready_ns < span->begin_ns) spans.push_back(span);
    }
    std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
      return PhasesOf(*a).ready_ns < PhasesOf(*b).ready_ns;
    });
    std::vector<Interval> extents;
    for (const Span* span : spans) extents.push_back({PhasesOf(*span).ready_ns, span->begin_ns});
    const std::vector<int64_t> rows = MakeRows("queue", extents);
    for (size_t i = 0; i < spans.size(); ++i) {
      TransferSlice("queue: " + index_.TaskOf(*spans[i]).name, *spans[i], extents[i], rows[i]);
    }
  }

  // Names the threads for extents that ascend by begin; the result is the thread of each.
  std::vector<int64_t> MakeRows(const char* name, const std::vector<Interval>& extents) {
    const std::vector<size_t> rows = AssignRows(extents);
    const size_t count = rows.empty() ? 0 : *std::max_element(rows.begin(), rows.end()) + 1;
    for (size_t row = 0; row < count; ++row) {
      const int64_t thread = next_row_ + static_cast<int64_t>(row);
      std::string title = name;
      if (count > 1) title.append(" ").append(std::to_string(row + 1));
      Meta("thread_name", thread, {{"name", title}});
      Meta("thread_sort_index", thread, {{"sort_index", thread}});
    }
    std::vector<int64_t> threads;
    for (size_t row : rows) threads.push_back(next_row_ + static_cast<int64_t>(row));
    next_row_ += static_cast<int64_t>(count);
    return threads;
  }

  void Slice(const std::string& name, const Span& span, const Interval& extent, int64_t row,
             const Json& more = Json::object()) {
    Json args = {{"step", span.step}};
    args.update(more);
    Event("X", row,
          {{"ts", Time(extent.begin - base_ns_)},
           {"dur", Time(extent.end - extent.begin)},
           {"name", name},
           {"args", std::move(args)}});
  }

  void TransferSlice(const std::string& name, const Span& span, const Interval& extent,
                     int64_t row) {
    const TraceTask& task = index_.TaskOf(span);
    const std::vector<TraceTask>& tasks = index_.timeline().tasks;
    Json args = {{"transfer", Name(task.transfer)}, {"bytes", task.size_bytes}};
    if (task.bucket != UINT32_MAX) args["bucket"] = task.bucket;
    if (task.needed_by != UINT32_MAX) args["needed_by"] = task.needed_by;
    if (task.needed_by < tasks.size()) args["needed_by_task"] = tasks[task.needed_by].name;
    Slice(name, span, extent, row, args);
  }

  // From submission to end, and below it what that consists of.
  void WriteTransfer(const Span& span, int64_t row) {
    const TransferPhases phases = PhasesOf(span);
    TransferSlice(index_.TaskOf(span).name, span, {phases.begin_ns, phases.end_ns}, row);
    if (span.wire_ns == 0) return;
    if (phases.begin_ns != phases.wire_ns) {
      Slice("in communicator", span, {phases.begin_ns, phases.wire_ns}, row);
    }
    if (phases.wire_ns != phases.end_ns) Slice("wire", span, {phases.wire_ns, phases.end_ns}, row);
  }

  void WriteFlows(const StallRecord& stall) {
    if (stall.transfer != nullptr) WriteFlow(*stall.transfer, *stall.ended_by);
    if (stall.forward != nullptr && stall.forward != stall.ended_by) {
      WriteFlow(*stall.ended_by, *stall.forward);
    }
  }

  // From just before the end of `from`, since an end is already outside.
  void WriteFlow(const Span& from, const Span& to) {
    const uint64_t id = (*flow_)++;
    const auto end = [&](const char* phase, int64_t time_ns, const Span& span, const Json& more) {
      Json event = {
          {"ts", Time(time_ns - base_ns_)}, {"id", id}, {"cat", "wait"}, {"name", "ended a wait"}};
      event.update(more);
      Event(phase, row_of_[&span], event);
    };
    end("s", std::max(from.begin_ns, from.end_ns - 1), from, Json::object());
    end("f", to.begin_ns, to, {{"bp", "e"}});
  }

  const TimelineIndex index_;
  const int64_t process_;
  const int64_t base_ns_;
  bool* const first_;
  uint64_t* const flow_;
  TextWriter& out_;
  int64_t next_row_;
  std::unordered_map<const Span*, int64_t> row_of_;
};

}  // namespace

void WriteChromeEvents(const RankTimeline& timeline, int64_t base_ns, bool* first, uint64_t* flow,
                       TextWriter& out) {
  RankEvents(timeline, base_ns, first, flow, out).Write();
}

}  // namespace engine::trace
