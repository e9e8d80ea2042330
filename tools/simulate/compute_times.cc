#include "tools/simulate/compute_times.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/trace/quantile.h"

namespace engine::simulate {
namespace {

double Median(std::vector<double> values) {
  return trace::Quantile(std::move(values), 0.5);
}

Status CheckSame(const trace::RankTimeline& timeline, const exec::TaskGraph& graph) {
  for (size_t i = 0; i < std::max(timeline.tasks.size(), graph.tasks.size()); ++i) {
    const bool both = i < timeline.tasks.size() && i < graph.tasks.size();
    if (both && timeline.tasks[i].name == graph.tasks[i].name) continue;
    return Status::Error(
        StatusCode::kBadData,
        "the recorded steps have '%s' where the configuration gives '%s': simulate "
        "with the model, data and plugins of the recorded run",
        i < timeline.tasks.size() ? timeline.tasks[i].name.c_str() : "no task",
        i < graph.tasks.size() ? graph.tasks[i].name.c_str() : "no task");
  }
  return {};
}

bool IsCompute(const trace::Span& span, const exec::TaskGraph& graph) {
  return span.kind == trace::SpanKind::kTask && graph.tasks[span.task].info.lane == Lane::kCompute;
}

// What a step waits for before it returns.
bool EndsStep(const exec::Task& task) {
  return !task.tail ||
         (task.info.kind == TaskKind::kTransfer && task.data == exec::TransferData::kStatistics);
}

}  // namespace

bool IsTail(const exec::Task& task) {
  return task.info.kind == TaskKind::kUpdate || (task.info.kind == TaskKind::kHook && task.tail);
}

Status ComputeTimes::Learn(const trace::RankTimeline& timeline, const exec::TaskGraph& graph,
                           uint64_t first_step) {
  ENGINE_RETURN_IF_ERROR(CheckSame(timeline, graph));
  std::vector<std::vector<double>> times(graph.tasks.size());
  for (const trace::Span& span : timeline.spans) {
    if (span.step < first_step || !IsCompute(span, graph)) continue;
    times[span.task].push_back(static_cast<double>(span.end_ns - span.begin_ns));
  }
  for (const exec::Task& task : graph.tasks) {
    if (task.info.lane != Lane::kCompute) continue;
    std::vector<double>& measured = times[task.info.id];
    if (measured.empty()) {
      return Status::Error(
          StatusCode::kBadData, "rank %d recorded no '%s' from step %llu on: record more steps",
          timeline.rank, task.name.c_str(), static_cast<unsigned long long>(first_step));
    }
    LearnTask(task, Median(std::move(measured)) / task.blocks);
  }
  LearnOverheads(timeline, graph, first_step);
  return {};
}

void ComputeTimes::LearnTask(const exec::Task& task, double median_ns) {
  const bool by_name = task.info.kind != TaskKind::kHook && task.info.kind != TaskKind::kUpdate;
  if (by_name) return by_name_[task.name].Add(median_ns);
  Sorted& sorted = by_sort_[SortOf(task)];
  int64_t count = 0;
  for (const exec::TaskSpan& span : task.spans) count += span.count;
  if (count == 0) return sorted.alone.Add(median_ns);
  sorted.of_any.Add(median_ns, static_cast<double>(count));
  for (const exec::TaskSpan& span : task.spans) {
    const auto share = static_cast<double>(span.count);
    sorted.per_element[span.parameter].Add(median_ns * share / static_cast<double>(count), share);
  }
}

void ComputeTimes::LearnOverheads(const trace::RankTimeline& timeline, const exec::TaskGraph& graph,
                                  uint64_t first_step) {
  std::vector<trace::Span> compute;
  std::map<uint64_t, int64_t> step_end;
  std::vector<double> between_tasks, between_steps;
  for (const trace::Span& span : timeline.spans) {
    if (span.step < first_step || span.kind != trace::SpanKind::kTask) continue;
    if (IsCompute(span, graph)) compute.push_back(span);
    if (!EndsStep(graph.tasks[span.task])) continue;
    int64_t& end = step_end[span.step];
    end = std::max(end, span.end_ns);
  }
  for (const trace::Span& span : timeline.spans) {
    if (span.kind != trace::SpanKind::kStep || step_end.count(span.step) == 0) continue;
    between_steps.push_back(std::max(0.0, static_cast<double>(span.end_ns - step_end[span.step])));
  }
  std::sort(compute.begin(), compute.end(),
            [](const trace::Span& a, const trace::Span& b) { return a.begin_ns < b.begin_ns; });
  for (size_t i = 1; i < compute.size(); ++i) {
    if (compute[i].ready_ns > compute[i - 1].end_ns) continue;
    between_tasks.push_back(static_cast<double>(compute[i].begin_ns - compute[i - 1].end_ns));
  }
  if (!between_tasks.empty()) task_overhead_.Add(Median(std::move(between_tasks)));
  if (!between_steps.empty()) step_overhead_.Add(Median(std::move(between_steps)));
}

Result<double> ComputeTimes::TimeOf(const exec::Task& task) const {
  const auto unknown = [&] {
    return Status::Error(StatusCode::kBadData,
                         "nothing was recorded from which the time of '%s' follows",
                         task.name.c_str());
  };
  if (task.info.kind != TaskKind::kHook && task.info.kind != TaskKind::kUpdate) {
    const auto found = by_name_.find(task.name);
    if (found == by_name_.end()) return unknown();
    return found->second.Value();
  }
  const auto found = by_sort_.find(SortOf(task));
  if (found == by_sort_.end()) return unknown();
  const Sorted& sorted = found->second;
  double time_ns = task.spans.empty() ? sorted.alone.Value() : 0;
  for (const exec::TaskSpan& span : task.spans) {
    const auto known = sorted.per_element.find(span.parameter);
    const Mean& mean = known == sorted.per_element.end() ? sorted.of_any : known->second;
    time_ns += mean.Value() * static_cast<double>(span.count);
  }
  time_ns *= task.blocks;
  return time_ns;
}

Result<std::vector<int64_t>> ComputeTimes::For(const exec::TaskGraph& graph) const {
  std::vector<int64_t> times(graph.tasks.size(), 0);
  for (const exec::Task& task : graph.tasks) {
    if (task.info.lane != Lane::kCompute) continue;
    ENGINE_ASSIGN_OR_RETURN(const double time_ns, TimeOf(task));
    times[task.info.id] = std::llround(time_ns);
  }
  return times;
}

}  // namespace engine::simulate
