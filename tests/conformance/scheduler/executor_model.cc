#include "tests/conformance/scheduler/executor_model.h"

#include "tests/fakes/allocation_count.h"

namespace engine::test {

void ExecutorModel::Send(EventKind kind, uint32_t task) {
  const AllocationCounter counter;
  scheduler_.On({.kind = kind, .task = task, .step = step_});
  allocations_ += counter.count();
}

Action ExecutorModel::Ask(Lane lane) {
  const AllocationCounter counter;
  const Action action = scheduler_.Next(lane);
  allocations_ += counter.count();
  return action;
}

void ExecutorModel::Start(Lane lane, uint32_t task) {
  const auto complain = [&](const char* what) {
    if (problem_.empty()) problem_ = "task " + std::to_string(task) + " " + what;
  };
  if (task >= states_.size()) return complain("does not exist");
  if (graph_.tasks()[task].lane != lane) return complain("was started on the wrong lane");
  if (states_[task] == State::kWaiting) return complain("was started before it was ready");
  if (states_[task] != State::kReady) return complain("was started twice");
  states_[task] = State::kStarted;
  running_.push_back(task);
  (lane == Lane::kIo ? trace_->io : trace_->compute).push_back(task);
}

void ExecutorModel::AskIo() {
  while (problem_.empty()) {
    const Action action = Ask(Lane::kIo);
    if (action.kind == ActionKind::kHold) return;
    Start(Lane::kIo, action.task);
  }
}

void ExecutorModel::AskCompute() {
  if (compute_is_busy_) return;
  const Action action = Ask(Lane::kCompute);
  if (action.kind == ActionKind::kHold) return;
  Start(Lane::kCompute, action.task);
  compute_is_busy_ = true;
}

// The I/O lane may be asked at any time between two events, the compute lane while it is free.
void ExecutorModel::End(uint32_t task) {
  states_[task] = State::kDone;
  ++done_;
  if (graph_.tasks()[task].lane == Lane::kCompute) compute_is_busy_ = false;
  Send(EventKind::kTaskDone, task);
  for (uint32_t next : graph_.dependents(task)) {
    if (--waits_for_[next] > 0) continue;
    states_[next] = State::kReady;
    Send(EventKind::kTaskReady, next);
    if (timing_() % 2 == 0) AskIo();
  }
}

std::string ExecutorModel::CheckIdle(const char* when) {
  if (Ask(Lane::kIo).kind == ActionKind::kHold && Ask(Lane::kCompute).kind == ActionKind::kHold) {
    return "";
  }
  return std::string("a task was left over after ") + when;
}

std::string ExecutorModel::Outcome() const {
  if (!problem_.empty()) return problem_;
  if (done_ == states_.size()) return "";
  return "both lanes hold and nothing runs, but " + std::to_string(states_.size() - done_) +
         " tasks were not run";
}

std::string ExecutorModel::RunStep(uint64_t step, uint32_t timing_seed, Trace* trace,
                                   size_t stop_after) {
  step_ = step;
  timing_.seed(timing_seed);
  states_.assign(graph_.tasks().size(), State::kWaiting);
  waits_for_ = graph_.dependency_counts();
  running_.clear();
  compute_is_busy_ = false;
  done_ = 0;
  *trace = {};
  trace_ = trace;
  problem_.clear();

  Send(EventKind::kStepBegin);
  for (uint32_t task = 0; task < states_.size(); ++task) {
    if (waits_for_[task] > 0) continue;
    states_[task] = State::kReady;
    Send(EventKind::kTaskReady, task);
  }
  while (problem_.empty()) {
    AskCompute();
    // The thread of the I/O lane may come late.
    if (timing_() % 2 == 0 || running_.empty()) AskIo();
    if (running_.empty()) break;
    const size_t next = timing_() % running_.size();
    const uint32_t task = running_[next];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(next));
    End(task);
    if (done_ == stop_after) {
      Send(EventKind::kError);
      return problem_.empty() ? CheckIdle("an error") : problem_;
    }
  }
  std::string outcome = Outcome();
  Send(EventKind::kStepEnd);
  return outcome.empty() ? CheckIdle("the end of the step") : outcome;
}

}  // namespace engine::test
