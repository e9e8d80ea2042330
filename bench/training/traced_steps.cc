#include "bench/training/traced_steps.h"

#include <algorithm>
#include <vector>

#include "tools/trace/step_figures.h"

namespace engine::bench {
namespace {

int64_t BytesPerStep(const trace::RankTimeline& timeline) {
  int64_t bytes = 0;
  for (const trace::TraceTask& task : timeline.tasks) {
    const bool counts = task.kind == TaskKind::kTransfer && task.transfer != TransferKind::kPull;
    if (counts) bytes += static_cast<int64_t>(task.size_bytes);
  }
  return bytes;
}

// Of the steps up to `last` the last `count`, as far as the rank has them.
std::vector<trace::StepFigures> FiguresOf(const trace::TimelineIndex& rank, uint64_t last,
                                          int64_t count) {
  const trace::StepMeter meter(rank);
  std::vector<trace::StepFigures> figures;
  for (const trace::Span* step : rank.steps()) {
    if (step->step > last || step->step + static_cast<uint64_t>(count) <= last) continue;
    figures.push_back(meter.Measure(step->step, {step->begin_ns, step->end_ns}));
  }
  return figures;
}

}  // namespace

Status MeasureSteps(const trace::Trace& trace, int64_t steps, RunResult* run) {
  if (trace.ranks.empty()) return Status::Error(StatusCode::kBadData, "the trace has no ranks");
  run->step_seconds.resize(static_cast<size_t>(steps));
  uint64_t last_step = 0;  // of the first rank
  for (const trace::Span& span : trace.ranks[0].spans) {
    if (span.kind == trace::SpanKind::kStep) last_step = std::max(last_step, span.step);
  }
  for (const trace::RankTimeline& timeline : trace.ranks) {
    const auto measured = FiguresOf(trace::TimelineIndex(timeline), last_step, steps);
    if (static_cast<int64_t>(measured.size()) != steps) {
      return Status::Error(StatusCode::kBadData,
                           "the trace of rank %d holds %zu of %lld measured steps (%llu spans did "
                           "not fit): measure fewer steps",
                           timeline.rank, measured.size(), static_cast<long long>(steps),
                           static_cast<unsigned long long>(timeline.dropped));
    }
    for (size_t i = 0; i < measured.size(); ++i) {
      run->step_seconds[i] = std::max(run->step_seconds[i], 1e-9 * measured[i].step);
    }
    const trace::StepFigures medians = trace::Medians(measured);
    const auto share_of_ns = 1e-9 / static_cast<double>(trace.ranks.size());
    run->forward_seconds += share_of_ns * medians.forward;
    run->backward_seconds += share_of_ns * medians.backward;
    run->waited_seconds += share_of_ns * medians.exposed;
    run->bytes_per_step = std::max(run->bytes_per_step, BytesPerStep(timeline));
  }
  return {};
}

}  // namespace engine::bench
