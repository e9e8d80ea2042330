#include "tools/conform/scheduler/executor_model.h"

#include <algorithm>

#include "tools/conform/allocation_count.h"

namespace engine::conform {

const Status kYield = Status::Error(StatusCode::kInterrupted, "it is the turn of others");

std::vector<uint32_t> Trace::OfStep(const std::vector<Started>& lane, uint32_t step) {
  std::vector<uint32_t> tasks;
  for (const Started& started : lane) {
    if (started.step == step) tasks.push_back(started.task);
  }
  return tasks;
}

void ExecutorModel::Watched::On(const SchedulerEvent& event) noexcept {
  const AllocationCounter counter;
  scheduler.On(event);
  allocations += counter.count();
  if (event.kind == EventKind::kStepBegin) backward_ended = false;
  if (event.kind == EventKind::kBackwardEnd) backward_ended = true;
}

Action ExecutorModel::Watched::Next(Lane lane) noexcept {
  const AllocationCounter counter;
  const Action action = scheduler.Next(lane);
  allocations += counter.count();
  return action;
}

void ExecutorModel::Start(uint32_t task) {
  loop_->Start(task, 0);
  const uint32_t step = started_[task]++;
  running_.push_back(task);
  const Started started{step, task, step + 1 < steps_begun_ || scheduler_.backward_ended};
  (graph_.infos[task].lane == Lane::kIo ? trace_->io : trace_->compute).push_back(started);
  trace_->all.push_back(started);
}

Status ExecutorModel::Run(const exec::Task& task) {
  Start(task.info.id);
  compute_is_busy_ = true;
  return kYield;
}

Status ExecutorModel::Wait() {
  return kYield;
}

void ExecutorModel::StartTransfers() {
  if (options_.tickets != nullptr) return FollowTickets();
  for (;;) {
    const Result<uint32_t> next = loop_->NextTransfer();
    if (!next.ok()) problem_ = next.status().message();
    if (!next.ok() || *next == trace::kNoTask) return;
    Start(*next);
  }
}

// Rank 0 is ahead of this rank or not, but its order holds.
void ExecutorModel::FollowTickets() {
  const std::vector<Started>& tickets = *options_.tickets;
  known_tickets_ = running_.empty() ? tickets.size() : known_tickets_ + timing_() % 3;
  while (next_ticket_ < std::min(known_tickets_, tickets.size())) {
    const uint32_t task = tickets[next_ticket_].task;
    if (!loop_->FollowTransfer(task)) return;
    Start(task);
    ++next_ticket_;
  }
}

// The rank's thread goes on until it starts a task or waits. When it is done with a step, the next
// batch comes, early or late, or a flush. Returns whether one of them came.
bool ExecutorModel::Compute() {
  if (compute_is_busy_) return false;
  const auto done = flushing_ ? &exec::StepLoop::TailDone : &exec::StepLoop::HeadDone;
  const Status status = loop_->Drive(done, *this);
  if (status.code() == kYield.code()) return false;
  if (!status.ok()) {
    problem_ = status.message();
    return false;
  }
  const bool is_last = steps_begun_ == options_.steps;
  if (flushing_ && is_last) return false;
  if (timing_() % 4 != 0 && FindEndable() > 0) return false;
  const bool flushes = !flushing_ && (options_.flush_always || is_last || flushes_() % 3 == 0);
  if (flushes) {
    flushing_ = true;
    loop_->BeginFlush();
  } else {
    BeginStep();
  }
  return true;
}

void ExecutorModel::BeginStep() {
  flushing_ = false;
  if (options_.flush_always) timing_.seed(options_.timing_seed);
  loop_->BeginStep(++steps_begun_, 0);
}

std::string ExecutorModel::GiveUp() {
  loop_->Abandon();
  const bool idle = scheduler_.Next(Lane::kIo).kind == ActionKind::kHold &&
                    scheduler_.Next(Lane::kCompute).kind == ActionKind::kHold;
  return idle ? "" : "a task was left over after an error";
}

std::string ExecutorModel::Outcome() const {
  if (!problem_.empty()) return problem_;
  if (AtEnd()) return "";
  if (running_.empty()) return loop_->Stalled().message();
  return "nothing that runs can end, among it '" + graph_.tasks[running_.front()].name + "'";
}

void ExecutorModel::Begin(const ExecutionOptions& options, Trace* trace) {
  options_ = options;
  loop_.emplace(graph_, scheduler_, "under test");
  timing_.seed(options.timing_seed);
  flushes_.seed(options.flush_seed);
  started_.assign(graph_.tasks.size(), 0);
  done_ = started_;
  running_.clear();
  compute_is_busy_ = false;
  steps_begun_ = 0;
  done_count_ = next_ticket_ = known_tickets_ = 0;
  *trace = {};
  trace_ = trace;
  problem_.clear();
  BeginStep();
}

// Moves what runs and may end to the front, and counts it.
size_t ExecutorModel::FindEndable() {
  if (!options_.may_end) return running_.size();
  const auto end = std::stable_partition(running_.begin(), running_.end(), [&](uint32_t task) {
    return options_.may_end(task, done_[task]);
  });
  return static_cast<size_t>(end - running_.begin());
}

bool ExecutorModel::Turn() {
  if (!problem_.empty()) return false;
  const size_t started_before = trace_->all.size();
  // The thread of the communicator may come late.
  if (timing_() % 2 == 0 || FindEndable() == 0) StartTransfers();
  const bool any = Compute() || trace_->all.size() > started_before;
  const size_t endable = FindEndable();
  if (endable == 0) return any;
  const auto next = running_.begin() + static_cast<std::ptrdiff_t>(timing_() % endable);
  const uint32_t task = *next;
  running_.erase(next);
  if (graph_.infos[task].lane == Lane::kCompute) compute_is_busy_ = false;
  ++done_[task];
  ++done_count_;
  loop_->Finish(task, 0);
  return true;
}

std::string ExecutorModel::Run(const ExecutionOptions& options, Trace* trace) {
  Begin(options, trace);
  while (Turn()) {
    if (done_count_ == options.stop_after) return problem_.empty() ? GiveUp() : problem_;
  }
  return Outcome();
}

}  // namespace engine::conform
