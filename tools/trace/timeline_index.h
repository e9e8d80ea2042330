// Finds the spans of a timeline by what they mean, and what each waited for.
#pragma once

#include <vector>

#include "tools/trace/timeline_times.h"

namespace engine::trace {

// Why the compute lane waited, as far as the spans tell. Null: not known.
struct StallRecord {
  const Span* wait = nullptr;
  const Span* ended_by = nullptr;  // the compute task that ended the wait
  const Span* transfer = nullptr;  // what `ended_by` waited for
  const Span* forward =
      nullptr;  // the first forward task that could run after `ended_by`, or `ended_by`
};

// Borrows `timeline`, which has been checked.
class TimelineIndex {
 public:
  explicit TimelineIndex(const RankTimeline& timeline);

  const RankTimeline& timeline() const { return timeline_; }
  const TraceTask& TaskOf(const Span& span) const { return timeline_.tasks[span.task]; }
  bool IsTransfer(const Span& span) const {
    return span.kind == SpanKind::kTask && TaskOf(span).kind == TaskKind::kTransfer;
  }
  bool Is(const Span& span, TransferKind kind) const {
    return IsTransfer(span) && TaskOf(span).transfer == kind;
  }

  // Ascending by begin.
  const std::vector<const Span*>& compute() const { return compute_; }
  const std::vector<const Span*>& transfers() const { return transfers_; }
  const std::vector<const Span*>& waits() const { return waits_; }
  const std::vector<const Span*>& steps() const { return steps_; }
  const std::vector<const Span*>& flushes() const { return flushes_; }

  // Null when the task did not run in that step, or the ring lost it.
  const Span* Find(uint32_t task, uint64_t step) const;
  // Of what a task depends on, in its step and the step before: what ended last, or null.
  const Span* LastDependency(const Span& span) const;
  // Of a pull: the push of its bucket that it comes after, or null.
  const Span* PushOf(const Span& pull) const;
  // From `span` back over dependencies that ended last to the first transfer, or null.
  const Span* SourceTransfer(const Span& span) const;

  // One per wait, in their order.
  std::vector<StallRecord> Stalls() const;

 private:
  const Span* EndedBy(const Span& wait) const;

  const RankTimeline& timeline_;
  std::vector<const Span*> compute_, transfers_, waits_, steps_, flushes_;
  std::vector<const Span*> by_task_;  // compute and transfers, ascending by (step, task)
};

}  // namespace engine::trace
