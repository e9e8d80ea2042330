#include "tools/trace/inversions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tools/trace/intervals.h"
#include "tools/trace/step_figures.h"

namespace engine::trace {
namespace {

struct Candidate {
  const Span* span = nullptr;
  int64_t ready_ns = 0;
  int64_t start_ns = 0;
  std::pair<uint64_t, uint32_t> urgency;  // smaller is more urgent
  bool is_pull = false;                   // which has the other direction of the link
  bool overtook = false;
};

std::vector<Candidate> Candidates(const TimelineIndex& index, TransferStart start) {
  std::vector<Candidate> candidates;
  for (const Span* span : index.transfers()) {
    const TraceTask& task = index.TaskOf(*span);
    const bool is_pull = task.transfer == TransferKind::kPull;
    // When a server sends the first byte of a pull is not known here.
    const bool known = start == TransferStart::kSubmission || (span->wire_ns != 0 && !is_pull);
    if (!MovesBucket(task) || !known) continue;
    const TransferPhases phases = PhasesOf(*span);
    const int64_t start_ns = start == TransferStart::kSubmission ? phases.begin_ns : phases.wire_ns;
    candidates.push_back({span, phases.ready_ns, start_ns, {span->step, task.needed_by}, is_pull});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.start_ns < b.start_ns; });
  return candidates;
}

}  // namespace

void Inversions::Add(const Inversions& other) {
  overtaken += other.overtaken;
  overtaken_bytes += other.overtaken_bytes;
  bytes += other.bytes;
  if (rank >= 0 && other.longest_ns <= longest_ns) return;
  longest_ns = other.longest_ns;
  longest_bytes = other.longest_bytes;
  rank = other.rank;
  step = other.step;
  name = other.name;
}

Inversions FindInversions(const TimelineIndex& index, TransferStart start,
                          const std::function<bool(uint64_t step)>& counts) {
  std::vector<Candidate> candidates = Candidates(index, start);
  Inversions result;
  for (const Candidate& victim : candidates) {
    const TraceTask& task = index.TaskOf(*victim.span);
    if (task.needed_by == UINT32_MAX || !counts(victim.span->step)) continue;
    auto other = std::upper_bound(candidates.begin(), candidates.end(), victim.ready_ns,
                                  [](int64_t time, const auto& c) { return time < c.start_ns; });
    Inversions one{.overtaken = 1, .overtaken_bytes = task.size_bytes, .name = task.name};
    std::vector<Interval> others;
    for (; other != candidates.end() && other->start_ns < victim.start_ns; ++other) {
      if (other->urgency <= victim.urgency || other->is_pull != victim.is_pull) continue;
      other->overtook = true;
      one.longest_bytes += index.TaskOf(*other->span).size_bytes;
      others.push_back({PhasesOf(*other->span).wire_ns, other->span->end_ns});
    }
    if (others.empty()) continue;
    one.longest_ns = LengthWithin(Union(others), {victim.ready_ns, victim.start_ns});
    one.rank = index.timeline().rank;
    one.step = victim.span->step;
    result.Add(one);
  }
  for (const Candidate& candidate : candidates) {
    if (candidate.overtook) result.bytes += index.TaskOf(*candidate.span).size_bytes;
  }
  return result;
}

}  // namespace engine::trace
