#include "core/exec/step_state.h"

#include <algorithm>

namespace engine {
namespace {

bool IsStatistics(const Task& task) {
  return task.info.kind == TaskKind::kTransfer && task.data == TransferData::kStatistics;
}

}  // namespace

StepState::StepState(const TaskGraph& graph, size_t parameter_count, Scheduler& scheduler)
    : graph_(graph), scheduler_(scheduler), writers_(parameter_count), version_(parameter_count) {
  const size_t count = graph.tasks.size();
  phase_.assign(count, Phase::kDone);
  waits_for_.resize(count);
  ready_ns_.resize(count);
  begin_ns_.resize(count);
  for (const Task& task : graph.tasks) {
    // Nothing precedes the first step.
    waits_for_[task.info.id] = task.dependency_count;
    if (!IsStatistics(task)) ++(task.tail ? tail_count_ : head_count_);
    for (int32_t parameter : task.completes) ++writers_[parameter];
  }
  writers_left_ = writers_;
}

void StepState::BeginStep(uint64_t step, int64_t now_ns) {
  step_ = step;
  ++steps_begun_;
  head_left_ = head_count_;
  tail_left_ += tail_count_;
  scheduler_.On({.kind = EventKind::kStepBegin, .step = step});
  for (const Task& task : graph_.tasks) {
    if (task.opens_step) phase_[task.info.id] = Phase::kWaiting;
  }
  for (const Task& task : graph_.tasks) {
    if (task.opens_step && waits_for_[task.info.id] == 0) {
      MakeReady(task.info.id, now_ns);
    }
  }
}

void StepState::MakeReady(uint32_t task, int64_t now_ns) {
  const Task& made = graph_.tasks[task];
  phase_[task] = Phase::kReady;
  ready_ns_[task] = now_ns;
  // The first of a tail: nothing of the one before it is left.
  if (made.tail && tail_left_ == tail_count_) tail_step_ = step_;
  // Its next instance waits for all of it again.
  waits_for_[task] = made.dependency_count + made.carried_count;
  scheduler_.On({.kind = EventKind::kTaskReady, .task = task, .step = StepOf(made)});
}

Status StepState::Check(const Action& action, Lane lane, const char* scheduler_name) const {
  const bool known = action.task < graph_.tasks.size();
  if (known && phase_[action.task] == Phase::kReady &&
      graph_.tasks[action.task].info.lane == lane) {
    return {};
  }
  return Status::Error(
      StatusCode::kPlugin, "scheduler '%s' asked for task %u (%s), which is not ready",
      scheduler_name, action.task,
      known ? graph_.tasks[action.task].name.c_str() : "there is none of this number");
}

void StepState::Start(uint32_t task, int64_t now_ns) {
  phase_[task] = Phase::kStarted;
  begin_ns_[task] = now_ns;
}

void StepState::Finish(uint32_t id, int64_t now_ns) {
  const Task& task = graph_.tasks[id];
  phase_[id] = Phase::kDone;
  for (int32_t parameter : task.completes) {
    if (--writers_left_[parameter] > 0) continue;
    writers_left_[parameter] = writers_[parameter];
    ++version_[parameter];
  }
  scheduler_.On({.kind = EventKind::kTaskDone, .task = id, .step = StepOf(task)});
  const bool counts = !IsStatistics(task);
  if (counts && task.tail) --tail_left_;
  if (counts && !task.tail && --head_left_ == 0) {
    scheduler_.On({.kind = EventKind::kBackwardEnd, .step = step_});
  }
  for (uint32_t next : task.successors) Satisfy(next, now_ns);
  for (uint32_t next : task.next_successors) Satisfy(next, now_ns);
}

// What opens a step that has not begun yet becomes ready when it begins.
void StepState::Satisfy(uint32_t task, int64_t now_ns) {
  if (--waits_for_[task] > 0) return;
  if (graph_.tasks[task].opens_step && phase_[task] != Phase::kWaiting) return;
  MakeReady(task, now_ns);
}

Status StepState::CheckVersions(const Task& task) const {
  for (int32_t parameter : task.reads) {
    if (version_[parameter] + 1 == steps_begun_) continue;
    return Status::Error(StatusCode::kInternal,
                         "'%s' of step %llu would read version %llu of a parameter instead of %llu",
                         task.name.c_str(), static_cast<unsigned long long>(step_),
                         static_cast<unsigned long long>(version_[parameter]),
                         static_cast<unsigned long long>(steps_begun_ - 1));
  }
  return {};
}

const Task* StepState::FirstReady() const {
  for (const Task& task : graph_.tasks) {
    if (phase_[task.info.id] == Phase::kReady) return &task;
  }
  return nullptr;
}

}  // namespace engine
