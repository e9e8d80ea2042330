#include "bench/training/traced_steps.h"

#include <algorithm>
#include <map>
#include <utility>

#include "bench/statistics/summary.h"

namespace engine::bench {
namespace {

struct StepTimes {
  double length = 0, forward = 0, backward = 0, waited = 0;
};

double Seconds(const trace::Span& span) {
  return static_cast<double>(span.end_ns - span.begin_ns) * 1e-9;
}

// By step, ascending; only steps that have ended.
std::map<uint64_t, StepTimes> StepsOf(const trace::RankTimeline& timeline) {
  std::map<uint64_t, StepTimes> steps;
  for (const trace::Span& span : timeline.spans) {
    if (span.kind == trace::SpanKind::kStep) steps[span.step].length = Seconds(span);
  }
  for (const trace::Span& span : timeline.spans) {
    const auto step = steps.find(span.step);
    if (step == steps.end()) continue;
    if (span.kind == trace::SpanKind::kWait) step->second.waited += Seconds(span);
    if (span.kind != trace::SpanKind::kTask) continue;
    const TaskKind kind = timeline.tasks[span.task].kind;
    if (kind == TaskKind::kForward) step->second.forward += Seconds(span);
    if (kind == TaskKind::kBackward) step->second.backward += Seconds(span);
  }
  return steps;
}

int64_t BytesPerStep(const trace::RankTimeline& timeline) {
  int64_t bytes = 0;
  for (const trace::TraceTask& task : timeline.tasks) {
    const bool counts = task.kind == TaskKind::kTransfer && task.transfer != TransferKind::kPull;
    if (counts) bytes += static_cast<int64_t>(task.size_bytes);
  }
  return bytes;
}

double MedianOf(const std::vector<StepTimes>& steps, double StepTimes::*field) {
  std::vector<double> values;
  for (const StepTimes& step : steps) values.push_back(step.*field);
  return Median(std::move(values));
}

}  // namespace

Result<TracedSteps> MeasureSteps(const trace::Trace& trace, int64_t steps) {
  TracedSteps result;
  result.step_seconds.resize(static_cast<size_t>(steps));
  uint64_t last_step = 0;  // of the first rank
  for (const trace::RankTimeline& timeline : trace.ranks) {
    const std::map<uint64_t, StepTimes> by_step = StepsOf(timeline);
    if (&timeline == &trace.ranks.front() && !by_step.empty()) last_step = by_step.rbegin()->first;
    std::vector<StepTimes> measured;
    for (const auto& [step, times] : by_step) {
      if (step <= last_step && step + static_cast<uint64_t>(steps) > last_step) {
        measured.push_back(times);
      }
    }
    if (static_cast<int64_t>(measured.size()) != steps) {
      return Status::Error(StatusCode::kBadData,
                           "the trace of rank %d holds %zu of %lld measured steps (%llu spans did "
                           "not fit): measure fewer steps",
                           timeline.rank, measured.size(), static_cast<long long>(steps),
                           static_cast<unsigned long long>(timeline.dropped));
    }
    for (size_t i = 0; i < measured.size(); ++i) {
      result.step_seconds[i] = std::max(result.step_seconds[i], measured[i].length);
    }
    const auto share = 1.0 / static_cast<double>(trace.ranks.size());
    result.forward_seconds += share * MedianOf(measured, &StepTimes::forward);
    result.backward_seconds += share * MedianOf(measured, &StepTimes::backward);
    result.waited_seconds += share * MedianOf(measured, &StepTimes::waited);
    result.bytes_per_step = std::max(result.bytes_per_step, BytesPerStep(timeline));
  }
  if (trace.ranks.empty()) return Status::Error(StatusCode::kBadData, "the trace has no ranks");
  return result;
}

}  // namespace engine::bench
