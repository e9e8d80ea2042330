#include "tools/trace/timeline_index.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace engine {
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

const Span* TimelineIndex::EnderOf(const Span& wait) const {
  if (wait.task == kNoTask) return nullptr;
  const Span* ender = Find(wait.task, wait.step);
  return ender != nullptr && !IsTransfer(*ender) && ender->begin_ns >= wait.begin_ns ? ender
                                                                                     : nullptr;
}

std::vector<WaitStory> TimelineIndex::WaitStories() const {
  std::vector<WaitStory> stories;
  std::unordered_map<const Span*, size_t> story_of_ender;
  for (const Span* wait : waits_) {
    WaitStory story{.wait = wait, .ender = EnderOf(*wait)};
    if (story.ender != nullptr) {
      story.transfer = SourceTransfer(*story.ender);
      story_of_ender.emplace(story.ender, stories.size());
    }
    stories.push_back(story);
  }
  for (const Span* span : compute_) {
    if (TaskOf(*span).kind != TaskKind::kForward) continue;
    const Span* cause = span;
    // Only over what stands between a transfer and a forward task.
    while (cause != nullptr && !story_of_ender.contains(cause)) {
      cause = LastDependency(*cause);
      if (cause == nullptr) break;
      const TaskKind kind = TaskOf(*cause).kind;
      if (kind != TaskKind::kUpdate && kind != TaskKind::kHook) cause = nullptr;
    }
    if (cause == nullptr) continue;
    WaitStory& story = stories[story_of_ender[cause]];
    if (story.forward == nullptr) story.forward = span;
  }
  return stories;
}

}  // namespace engine
