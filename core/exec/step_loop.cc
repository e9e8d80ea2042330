// At most two steps overlap: transfers and updates of step t (its tail) and forward tasks of step
// t+1. A task of t+1 cannot become ready before the same task of t is done: forward tasks wait for
// their parameters, whose update is the end of the tail; backward follows all of forward; so by the
// time backward of t+1 begins, nothing of t is left. One state per task is therefore enough.
//
// Invariants:
// 1. A task has one phase. It is made ready when all that it waits for is done, and it waits for
//    all of it again from then on, so that what ends meanwhile counts for its next instance.
// 2. What opens a step needs two things: that nothing is left to wait for, and that the step has
//    begun (kWaiting). Whichever comes last makes it ready.
// 3. tail_step_ names the step of all tasks of the tail that are not done: it moves on with the
//    first of them that becomes ready when none is left.
// 4. version_ counts the updates of a parameter; a forward task of the n-th step wants n - 1.
#include "core/exec/step_loop.h"

#include <algorithm>
#include <utility>

namespace engine::exec {

StepLoop::StepLoop(const TaskGraph& graph, Scheduler& scheduler, std::string scheduler_name)
    : graph_(graph),
      scheduler_(scheduler),
      scheduler_name_(std::move(scheduler_name)),
      phase_(graph.tasks.size(), Phase::kDone),
      waits_for_(graph.tasks.size()),
      spans_(graph.tasks.size()) {
  for (const Task& task : graph.tasks) {
    // Nothing precedes the first step.
    waits_for_[task.info.id] = task.dependency_count;
    if (task.info.id != graph.statistics) ++(task.tail ? tail_count_ : head_count_);
    for (const int32_t parameter : task.completes) {
      writers_.resize(std::max(writers_.size(), static_cast<size_t>(parameter) + 1));
      ++writers_[parameter];
    }
  }
  writers_left_ = writers_;
  version_.resize(writers_.size());
}

// In two passes: what becomes ready is told by ascending id, and nothing that opens the step is
// still taken for done meanwhile.
void StepLoop::BeginStep(uint64_t step, int64_t now_ns) {
  step_ = step;
  ++steps_begun_;
  head_left_ = head_count_;
  tail_left_ += tail_count_;
  statistics_pending_ = graph_.statistics != trace::kNoTask;
  scheduler_.On({.kind = EventKind::kStepBegin, .step = step});
  for (const Task& task : graph_.tasks) {
    if (task.opens_step) phase_[task.info.id] = Phase::kWaiting;
  }
  for (const Task& task : graph_.tasks) {
    if (task.opens_step && waits_for_[task.info.id] == 0) MakeReady(task.info.id, now_ns);
  }
}

Status StepLoop::Drive(bool (StepLoop::*done)() const, Calls& calls) {
  while (!(this->*done)()) {
    const Action action = scheduler_.Next(Lane::kCompute);
    if (action.kind == ActionKind::kHold) {
      ENGINE_RETURN_IF_ERROR(calls.Wait());
      continue;
    }
    ENGINE_RETURN_IF_ERROR(Check(action, Lane::kCompute));
    const Task& task = graph_.tasks[action.task];
    if (task.info.kind == TaskKind::kForward) ENGINE_RETURN_IF_ERROR(CheckVersions(task));
    ENGINE_RETURN_IF_ERROR(calls.Run(task));
  }
  return {};
}

Result<uint32_t> StepLoop::NextTransfer() {
  const Action action = scheduler_.Next(Lane::kIo);
  if (action.kind == ActionKind::kHold) return trace::kNoTask;
  ENGINE_RETURN_IF_ERROR(Check(action, Lane::kIo));
  return action.task;
}

bool StepLoop::FollowTransfer(uint32_t task) {
  if (phase_[task] != Phase::kReady) return false;
  scheduler_.On(
      {.kind = EventKind::kTaskStarted, .task = task, .step = StepOf(graph_.tasks[task])});
  return true;
}

Status StepLoop::Check(const Action& action, Lane lane) const {
  const bool known = action.kind == ActionKind::kRun && action.task < graph_.tasks.size();
  if (known && phase_[action.task] == Phase::kReady &&
      graph_.tasks[action.task].info.lane == lane) {
    return {};
  }
  return Status::Error(
      StatusCode::kPlugin, "scheduler '%s' asked for task %u (%s), which is not ready",
      scheduler_name_.c_str(), action.task,
      known ? graph_.tasks[action.task].name.c_str() : "there is none of this number");
}

// Whether the parameters that a forward task reads are those that it needs: the second look, by
// another path than the dependencies.
Status StepLoop::CheckVersions(const Task& task) const {
  for (const int32_t parameter : task.reads) {
    if (version_[parameter] + 1 == steps_begun_) continue;
    return Status::Error(StatusCode::kInternal,
                         "'%s' of step %llu would read version %llu of a parameter instead of %llu",
                         task.name.c_str(), static_cast<unsigned long long>(step_),
                         static_cast<unsigned long long>(version_[parameter]),
                         static_cast<unsigned long long>(steps_begun_ - 1));
  }
  return {};
}

void StepLoop::MakeReady(uint32_t task, int64_t now_ns) {
  const Task& made = graph_.tasks[task];
  phase_[task] = Phase::kReady;
  // The first of a tail: nothing of the one before it is left.
  if (made.tail && tail_left_ == tail_count_) tail_step_ = step_;
  spans_[task] = {.task = task, .step = StepOf(made), .ready_ns = now_ns};
  // Its next instance waits for all of it again.
  waits_for_[task] = made.dependency_count + made.carried_count;
  scheduler_.On({.kind = EventKind::kTaskReady, .task = task, .step = StepOf(made)});
}

void StepLoop::Start(uint32_t task, int64_t now_ns) {
  phase_[task] = Phase::kStarted;
  spans_[task].begin_ns = now_ns;
}

void StepLoop::Finish(uint32_t id, int64_t now_ns) {
  const Task& task = graph_.tasks[id];
  phase_[id] = Phase::kDone;
  for (const int32_t parameter : task.completes) {
    if (--writers_left_[parameter] > 0) continue;
    writers_left_[parameter] = writers_[parameter];
    ++version_[parameter];
  }
  scheduler_.On({.kind = EventKind::kTaskDone, .task = id, .step = StepOf(task)});
  if (id == graph_.statistics) {
    statistics_pending_ = false;
  } else if (task.tail) {
    --tail_left_;
  } else if (--head_left_ == 0) {
    scheduler_.On({.kind = EventKind::kBackwardEnd, .step = step_});
  }
  for (const uint32_t next : task.successors) Satisfy(next, now_ns);
  for (const uint32_t next : task.next_successors) Satisfy(next, now_ns);
}

// What opens a step that has not begun yet becomes ready when it begins.
void StepLoop::Satisfy(uint32_t task, int64_t now_ns) {
  if (--waits_for_[task] > 0) return;
  if (graph_.tasks[task].opens_step && phase_[task] != Phase::kWaiting) return;
  MakeReady(task, now_ns);
}

StepLoop::Updated StepLoop::LastUpdated() const {
  Updated updated{.begun = step_};
  for (const Task& task : graph_.tasks) {
    const bool ready = phase_[task.info.id] == Phase::kReady;
    if (ready && task.info.kind == TaskKind::kUpdate) updated.left.push_back(task.info.id);
  }
  uint64_t done = steps_begun_;
  for (size_t i = 0; i < version_.size(); ++i) {
    if (writers_[i] > 0) done = std::min(done, version_[i]);
  }
  updated.step = step_ - steps_begun_ + done + (updated.left.empty() ? 0 : 1);
  return updated;
}

Status StepLoop::Stalled() const {
  const auto ready = std::ranges::find(phase_, Phase::kReady);
  if (ready == phase_.end()) {
    return Status::Error(StatusCode::kInternal, "no task is ready and none is under way");
  }
  return Status::Error(StatusCode::kTimeout,
                       "stalled: scheduler '%s' holds '%s' although nothing is under way",
                       scheduler_name_.c_str(), graph_.tasks[ready - phase_.begin()].name.c_str());
}

}  // namespace engine::exec
