#include "tools/trace/step_figures.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace engine::trace {
namespace {

Intervals Cover(const std::vector<const Span*>& spans) {
  std::vector<Interval> intervals;
  for (const Span* span : spans) intervals.push_back({span->begin_ns, span->end_ns});
  return Union(intervals);
}

// Compute tasks of these kinds.
Intervals Cover(const TimelineIndex& index, std::initializer_list<TaskKind> kinds) {
  std::vector<const Span*> spans = index.compute();
  std::erase_if(spans, [&](const Span* span) {
    return std::ranges::find(kinds, index.TaskOf(*span).kind) == kinds.end();
  });
  return Cover(spans);
}

}  // namespace

double BusFactor(TransferKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case TransferKind::kAllReduce:
      return 2 * (n - 1) / n;
    case TransferKind::kReduceScatter:
    case TransferKind::kAllGather:
      return (n - 1) / n;
    default:
      return 1;
  }
}

void AddLinkBytes(const TraceTask& task, int32_t world_size, LinkLoad* load) {
  const auto bytes = static_cast<double>(task.size_bytes);
  if (task.transfer == TransferKind::kPush) load->out += bytes;
  if (task.transfer == TransferKind::kPull) load->in += bytes;
  if (task.transfer >= TransferKind::kBarrier || world_size <= 1) return;
  load->out += bytes * BusFactor(task.transfer, world_size);
  load->in += bytes * BusFactor(task.transfer, world_size);
}

bool MovesBucket(const TraceTask& task) {
  return task.kind == TaskKind::kTransfer && task.bucket != UINT32_MAX;
}

StepMeter::StepMeter(const TimelineIndex& index)
    : index_(index),
      forward_(Cover(index, {TaskKind::kForward})),
      backward_(Cover(index, {TaskKind::kBackward, TaskKind::kAccumulate})),
      hooks_(Cover(index, {TaskKind::kHook, TaskKind::kTransfer})),
      update_(Cover(index, {TaskKind::kUpdate})),
      waits_(Cover(index.waits())),
      communication_(Cover(index.transfers())),
      covered_waits_(Intersection(waits_, communication_)) {}

StepFigures StepMeter::Measure(uint64_t step, const Interval& window) const {
  const auto within = [&](const Intervals& intervals) {
    return static_cast<double>(LengthWithin(intervals, window));
  };
  StepFigures figures;
  figures.step = static_cast<double>(window.end - window.begin);
  figures.forward = within(forward_);
  figures.backward = within(backward_);
  figures.hooks = within(hooks_);
  figures.update = within(update_);
  figures.exposed = within(waits_);
  figures.silent = figures.exposed - within(covered_waits_);
  figures.other = figures.step - figures.forward - figures.backward - figures.hooks -
                  figures.update - figures.exposed;
  figures.communication = within(communication_);
  if (figures.communication > 0) figures.overlap = 1 - figures.exposed / figures.communication;

  double bytes = 0;
  LinkLoad load;
  std::vector<Interval> wire;
  for (uint32_t task = 0; task < index_.timeline().tasks.size(); ++task) {
    const TraceTask& info = index_.timeline().tasks[task];
    const Span* span = MovesBucket(info) ? index_.Find(task, step) : nullptr;
    if (span == nullptr) continue;
    bytes += static_cast<double>(info.size_bytes);
    AddLinkBytes(info, index_.timeline().world_size, &load);
    wire.push_back({PhasesOf(*span).wire_ns, span->end_ns});
  }
  const double seconds = static_cast<double>(Length(Union(wire))) / 1e9;
  if (seconds > 0) {
    figures.algorithm_bandwidth = bytes / seconds;
    figures.bus_bandwidth = load.larger() / seconds;
  }
  return figures;
}

StepFigures Medians(const std::vector<StepFigures>& steps) {
  StepFigures medians;
  for (double StepFigures::*member :
       {&StepFigures::step, &StepFigures::forward, &StepFigures::backward, &StepFigures::hooks,
        &StepFigures::update, &StepFigures::exposed, &StepFigures::silent, &StepFigures::other,
        &StepFigures::communication}) {
    std::vector<double> values;
    for (const StepFigures& step : steps) values.push_back(step.*member);
    medians.*member = Quantile(std::move(values), 0.5);
  }
  for (std::optional<double> StepFigures::*member :
       {&StepFigures::overlap, &StepFigures::algorithm_bandwidth, &StepFigures::bus_bandwidth}) {
    std::vector<double> values;
    for (const StepFigures& step : steps) {
      if (step.*member) values.push_back(*(step.*member));
    }
    if (!values.empty()) medians.*member = Quantile(std::move(values), 0.5);
  }
  return medians;
}

}  // namespace engine::trace
