#include "tools/trace/chrome_events.h"

#include <algorithm>
#include <cinttypes>
#include <unordered_map>

#include "tools/trace/intervals.h"
#include "tools/trace/timeline_index.h"

namespace engine {
namespace {

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
    Named("process_name", 0, "rank " + std::to_string(index_.timeline().rank));
    Sorted("process_sort_index", 0, process_);
    WriteGroup("steps", index_.steps(), [&](const Span& s, int64_t row) { WriteStep(s, row); });
    WriteGroup("flushes", index_.flushes(), [&](const Span& s, int64_t row) {
      Slice("flush", s.begin_ns, s.end_ns, row, s.step);
      EndSlice();
    });
    WriteGroup("compute", index_.compute(),
               [&](const Span& s, int64_t row) { WriteCompute(s, row); });
    WriteGroup("waits", index_.waits(), [&](const Span& s, int64_t row) { WriteWait(s, row); });
    WriteGroup("transfers", index_.transfers(),
               [&](const Span& s, int64_t row) { WriteTransfer(s, row); });
    WriteQueue();
    for (const WaitStory& story : index_.WaitStories()) WriteFlows(story);
  }

 private:
  // Times in microseconds with all nanoseconds.
  void Time(const char* key, int64_t time_ns) {
    out_.Print(",\"%s\":%" PRId64 ".%03" PRId64, key, time_ns / 1000, time_ns % 1000);
  }

  void Event(const char* phase, int64_t row) {
    out_.FlushIfLarge();
    out_.Print("%s{\"ph\":\"%s\",\"pid\":%" PRId64 ",\"tid\":%" PRId64, *first_ ? "\n" : ",\n",
               phase, process_, row);
    *first_ = false;
  }

  void Named(const char* what, int64_t row, const std::string& name) {
    Event("M", row);
    out_.Print(",\"name\":\"%s\",\"args\":{\"name\":", what);
    out_.Quoted(name);
    out_.Text("}}");
  }

  void Sorted(const char* what, int64_t row, int64_t position) {
    Event("M", row);
    out_.Print(",\"name\":\"%s\",\"args\":{\"sort_index\":%" PRId64 "}}", what, position);
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
      Named("thread_name", thread, title);
      Sorted("thread_sort_index", thread, thread);
    }
    std::vector<int64_t> threads;
    for (size_t row : rows) threads.push_back(next_row_ + static_cast<int64_t>(row));
    next_row_ += static_cast<int64_t>(count);
    return threads;
  }

  // Leaves the arguments open for more.
  void Slice(const std::string& name, int64_t begin_ns, int64_t end_ns, int64_t row,
             uint64_t step) {
    Event("X", row);
    Time("ts", begin_ns - base_ns_);
    Time("dur", end_ns - begin_ns);
    out_.Text(",\"name\":");
    out_.Quoted(name);
    out_.Print(",\"args\":{\"step\":%" PRIu64, step);
  }
  void EndSlice() { out_.Text("}}"); }

  void WriteStep(const Span& span, int64_t row) {
    Slice("step " + std::to_string(span.step), span.begin_ns, span.end_ns, row, span.step);
    EndSlice();
  }

  void WriteCompute(const Span& span, int64_t row) {
    const TraceTask& task = index_.TaskOf(span);
    Slice(task.name, span.begin_ns, span.end_ns, row, span.step);
    out_.Print(",\"kind\":\"%s\"", Name(task.kind));
    EndSlice();
  }

  void WriteWait(const Span& span, int64_t row) {
    const bool known = span.task != kNoTask;
    Slice(known ? "wait for " + index_.TaskOf(span).name : "wait", span.begin_ns, span.end_ns, row,
          span.step);
    EndSlice();
  }

  void TransferSlice(const std::string& name, const Span& span, const Interval& extent,
                     int64_t row) {
    const TraceTask& task = index_.TaskOf(span);
    Slice(name, extent.begin, extent.end, row, span.step);
    out_.Print(",\"transfer\":\"%s\",\"bytes\":%" PRIu64, Name(task.transfer), task.size_bytes);
    if (task.unit != UINT32_MAX) out_.Print(",\"unit\":%u", task.unit);
    if (task.needed_by != UINT32_MAX) {
      out_.Print(",\"needed_by\":%u", task.needed_by);
      if (task.needed_by < index_.timeline().tasks.size()) {
        out_.Text(",\"needed_by_task\":");
        out_.Quoted(index_.timeline().tasks[task.needed_by].name);
      }
    }
    EndSlice();
  }

  // From submission to end, and below it what that consists of.
  void WriteTransfer(const Span& span, int64_t row) {
    const TransferPhases phases = PhasesOf(span);
    TransferSlice(index_.TaskOf(span).name, span, {phases.begin_ns, phases.end_ns}, row);
    const auto part = [&](const char* name, int64_t begin_ns, int64_t end_ns) {
      if (begin_ns == end_ns) return;
      Slice(name, begin_ns, end_ns, row, span.step);
      EndSlice();
    };
    if (span.wire_ns == 0) return;
    part("in communicator", phases.begin_ns, phases.wire_ns);
    part("wire", phases.wire_ns, phases.end_ns);
  }

  void WriteFlows(const WaitStory& story) {
    if (story.transfer != nullptr) WriteFlow(*story.transfer, *story.ender);
    if (story.forward != nullptr && story.forward != story.ender) {
      WriteFlow(*story.ender, *story.forward);
    }
  }

  // From just before the end of `from`, since an end is already outside.
  void WriteFlow(const Span& from, const Span& to) {
    const uint64_t id = (*flow_)++;
    FlowEnd("s", id, std::max(from.begin_ns, from.end_ns - 1), row_of_[&from]);
    out_.Text("}");
    FlowEnd("f", id, to.begin_ns, row_of_[&to]);
    out_.Text(",\"bp\":\"e\"}");
  }

  void FlowEnd(const char* phase, uint64_t id, int64_t time_ns, int64_t row) {
    Event(phase, row);
    Time("ts", time_ns - base_ns_);
    out_.Print(",\"id\":%" PRIu64 ",\"cat\":\"wait\",\"name\":\"ended a wait\"", id);
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

}  // namespace engine
