#include "tools/trace/timeline_index.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace engine::trace {
namespace {

std::pair<uint64_t, uint32_t> KeyOf(const Span* span) {
  return {span->step, span->task};
}

}  // namespace

TimelineIndex::TimelineIndex(const RankTimeline& timeline) : timeline_(timeline) {
  for (const Span& span : timeline.spans) {
    switch (span.kind) {
      case SpanKind::kTask:
        (IsTransfer(span) ? transfers_ : compute_).push_back(&span);
        by_task_.push_back(&span);
        break;
      case SpanKind::kWait:
        waits_.push_back(&span);
        break;
      case SpanKind::kStep:
        steps_.push_back(&span);
        break;
      case SpanKind::kFlush:
        flushes_.push_back(&span);
        break;
    }
  }
  for (auto* spans : {&compute_, &transfers_, &waits_, &steps_, &flushes_}) {
    std::stable_sort(spans->begin(), spans->end(), [](const Span* a, const Span* b) {
      return std::pair(a->begin_ns, a->end_ns) < std::pair(b->begin_ns, b->end_ns);
    });
  }
  std::stable_sort(by_task_.begin(), by_task_.end(),
                   [](const Span* a, const Span* b) { return KeyOf(a) < KeyOf(b); });
}

const Span* TimelineIndex::Find(uint32_t task, uint64_t step) const {
  const std::pair key(step, task);
  const auto found =
      std::lower_bound(by_task_.begin(), by_task_.end(), key,
                       [](const Span* span, const auto& wanted) { return KeyOf(span) < wanted; });
  return found != by_task_.end() && KeyOf(*found) == key ? *found : nullptr;
}

const Span* TimelineIndex::LastDependency(const Span& span) const {
  const Span* last = nullptr;
  const auto consider = [&](uint32_t task, uint64_t step) {
    const Span* found = Find(task, step);
    if (found != nullptr && (last == nullptr || found->end_ns > last->end_ns)) last = found;
  };
  for (uint32_t task : TaskOf(span).depends_on) consider(task, span.step);
  if (span.step == 0) return last;
  for (uint32_t task : TaskOf(span).depends_on_last) consider(task, span.step - 1);
  return last;
}

const Span* TimelineIndex::PushOf(const Span& pull) const {
  const auto among = [&](const std::vector<uint32_t>& tasks, uint64_t step) -> const Span* {
    for (uint32_t task : tasks) {
      const Span* span = Find(task, step);
      if (span != nullptr && Is(*span, TransferKind::kPush)) return span;
    }
    return nullptr;
  };
  const Span* push = among(TaskOf(pull).depends_on, pull.step);
  if (push != nullptr || pull.step == 0) return push;
  return among(TaskOf(pull).depends_on_last, pull.step - 1);
}

// Ends, since every dependency is of a smaller (step, id).
const Span* TimelineIndex::SourceTransfer(const Span& span) const {
  const Span* source = LastDependency(span);
  while (source != nullptr && !IsTransfer(*source)) source = LastDependency(*source);
  return source;
}

const Span* TimelineIndex::EndedBy(const Span& wait) const {
  if (wait.task == kNoTask) return nullptr;
  const Span* ended_by = Find(wait.task, wait.step);
  return ended_by != nullptr && !IsTransfer(*ended_by) && ended_by->begin_ns >= wait.begin_ns
             ? ended_by
             : nullptr;
}

std::vector<StallRecord> TimelineIndex::Stalls() const {
  std::vector<StallRecord> stalls;
  std::unordered_map<const Span*, size_t> stall_of;
  for (const Span* wait : waits_) {
    StallRecord stall{.wait = wait, .ended_by = EndedBy(*wait)};
    if (stall.ended_by != nullptr) {
      stall.transfer = SourceTransfer(*stall.ended_by);
      stall_of.emplace(stall.ended_by, stalls.size());
    }
    stalls.push_back(stall);
  }
  for (const Span* span : compute_) {
    if (TaskOf(*span).kind != TaskKind::kForward) continue;
    const Span* cause = span;
    // Only over what stands between a transfer and a forward task.
    while (cause != nullptr && !stall_of.contains(cause)) {
      cause = LastDependency(*cause);
      if (cause == nullptr) break;
      const TaskKind kind = TaskOf(*cause).kind;
      if (kind != TaskKind::kUpdate && kind != TaskKind::kHook) cause = nullptr;
    }
    if (cause == nullptr) continue;
    StallRecord& stall = stalls[stall_of[cause]];
    if (stall.forward == nullptr) stall.forward = span;
  }
  return stalls;
}

}  // namespace engine::trace
