#include "tests/conformance/scheduler/executor_model.h"

#include <algorithm>

#include "tests/support/allocation_count.h"

namespace engine::test {

std::vector<uint32_t> Trace::OfStep(const std::vector<Started>& lane, uint32_t step) {
  std::vector<uint32_t> tasks;
  for (const Started& started : lane) {
    if (started.step == step) tasks.push_back(started.task);
  }
  return tasks;
}

void ExecutorModel::Send(EventKind kind, uint32_t task) {
  const AllocationCounter counter;
  scheduler_.On({.kind = kind, .task = task, .step = steps_begun_});
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
  if (task >= progress_.size()) return complain("does not exist");
  if (graph_.tasks()[task].lane != lane) return complain("was started on the wrong lane");
  Progress& progress = progress_[task];
  if (progress.state == State::kWaiting) return complain("was started before it was ready");
  if (progress.state == State::kStarted) return complain("was started twice");
  progress.state = State::kStarted;
  running_.push_back(task);
  const uint32_t step = progress.steps_done;
  const Started started{step, task, step + 1 < steps_begun_ || backward_ended_};
  (lane == Lane::kIo ? trace_->io : trace_->compute).push_back(started);
  trace_->all.push_back(started);
}

void ExecutorModel::AskIo() {
  if (!Asks(Lane::kIo)) return FollowTickets();
  while (problem_.empty()) {
    const Action action = Ask(Lane::kIo);
    if (action.kind == ActionKind::kHold) return;
    Start(Lane::kIo, action.task);
  }
}

// Rank 0 is ahead of this rank or not, but its order holds.
void ExecutorModel::FollowTickets() {
  const std::vector<Started>& tickets = *options_.tickets;
  known_tickets_ = running_.empty() ? tickets.size() : known_tickets_ + timing_() % 3;
  while (next_ticket_ < std::min(known_tickets_, tickets.size())) {
    const Started& ticket = tickets[next_ticket_];
    const Progress& progress = progress_[ticket.task];
    if (progress.steps_done != ticket.step || progress.state != State::kReady) return;
    Start(Lane::kIo, ticket.task);
    Send(EventKind::kTaskStarted, ticket.task);
    ++next_ticket_;
  }
}

void ExecutorModel::AskCompute() {
  if (compute_is_busy_) return;
  const Action action = Ask(Lane::kCompute);
  if (action.kind == ActionKind::kHold) return;
  Start(Lane::kCompute, action.task);
  compute_is_busy_ = true;
}

bool ExecutorModel::CanBecomeReady(uint32_t task) const {
  const Progress& progress = progress_[task];
  const uint32_t step = progress.steps_done;
  if (progress.state != State::kWaiting || step >= steps_begun_) return false;
  const Links& links = graph_.waits_for(task);
  const auto behind = [&](uint32_t steps) {
    return [this, steps](uint32_t other) { return progress_[other].steps_done < steps; };
  };
  return std::none_of(links.same_step.begin(), links.same_step.end(), behind(step + 1)) &&
         std::none_of(links.other_step.begin(), links.other_step.end(), behind(step));
}

// The I/O lane may be asked at any time between two events, the compute lane while it is free.
void ExecutorModel::OfferReady(std::vector<uint32_t> candidates) {
  std::sort(candidates.begin(), candidates.end());
  for (uint32_t task : candidates) {
    if (!CanBecomeReady(task)) continue;
    progress_[task].state = State::kReady;
    Send(EventKind::kTaskReady, task);
    if (timing_() % 4 == 0) AskIo();
  }
}

void ExecutorModel::End(uint32_t task) {
  progress_[task].state = State::kWaiting;
  ++progress_[task].steps_done;
  ++done_;
  if (graph_.tasks()[task].lane == Lane::kCompute) compute_is_busy_ = false;
  Send(EventKind::kTaskDone, task);
  const Links& links = graph_.dependents(task);
  std::vector<uint32_t> candidates = {task};  // of the next step
  candidates.insert(candidates.end(), links.same_step.begin(), links.same_step.end());
  candidates.insert(candidates.end(), links.other_step.begin(), links.other_step.end());
  const bool says_end_first = timing_() % 2 == 0;
  if (says_end_first && graph_.is_head(task)) EndHead();
  OfferReady(std::move(candidates));
  if (!says_end_first && graph_.is_head(task)) EndHead();
}

void ExecutorModel::EndHead() {
  if (--head_left_ > 0) return;
  backward_ended_ = true;
  Send(EventKind::kBackwardEnd);
}

void ExecutorModel::BeginStep() {
  ++steps_begun_;
  flushing_ = backward_ended_ = false;
  if (options_.flush_always) timing_.seed(options_.timing_seed);
  std::vector<uint32_t> all(progress_.size());
  head_left_ = 0;
  for (uint32_t task = 0; task < all.size(); ++task) {
    all[task] = task;
    head_left_ += graph_.is_head(task);
  }
  Send(EventKind::kStepBegin);
  OfferReady(std::move(all));
}

// A batch comes, or a flush. Returns whether one of them could come now.
bool ExecutorModel::NextFromOutside() {
  if (flushing_) {
    if (!AllDone(steps_begun_) || steps_begun_ == options_.steps) return false;
    BeginStep();
    return true;
  }
  if (!backward_ended_) return false;
  const bool draw = flushes_() % 3 == 0;
  if (options_.flush_always || steps_begun_ == options_.steps || draw) {
    flushing_ = true;
    Send(EventKind::kFlush);
  } else {
    BeginStep();
  }
  return true;
}

std::string ExecutorModel::GiveUp() {
  Send(EventKind::kError);
  const bool idle =
      Ask(Lane::kIo).kind == ActionKind::kHold && Ask(Lane::kCompute).kind == ActionKind::kHold;
  return idle ? "" : "a task was left over after an error";
}

std::string ExecutorModel::Outcome() const {
  if (!problem_.empty()) return problem_;
  if (AllDone(options_.steps) && flushing_) return "";
  if (!running_.empty()) {
    return "nothing that runs can end, among it '" +
           std::string(graph_.tasks()[running_.front()].name) + "'";
  }
  return "it holds both lanes and nothing runs, in step " + std::to_string(steps_begun_ - 1) +
         (flushing_ ? ", which is flushed" : "");
}

bool ExecutorModel::WasStarted(uint32_t task, uint32_t step) const {
  const Progress& progress = progress_[task];
  return WasDone(task, step) || (progress.steps_done == step && progress.state == State::kStarted);
}

void ExecutorModel::Begin(const RunOptions& options, Trace* trace) {
  options_ = options;
  timing_.seed(options.timing_seed);
  flushes_.seed(options.flush_seed);
  progress_.assign(graph_.tasks().size(), {});
  running_.clear();
  compute_is_busy_ = false;
  steps_begun_ = 0;
  done_ = next_ticket_ = known_tickets_ = 0;
  *trace = {};
  trace_ = trace;
  problem_.clear();

  BeginStep();
}

// Moves what runs and may end to the front, and counts it.
size_t ExecutorModel::FindEndable() {
  if (!options_.may_end) return running_.size();
  const auto end = std::stable_partition(running_.begin(), running_.end(), [&](uint32_t task) {
    return options_.may_end(task, progress_[task].steps_done);
  });
  return static_cast<size_t>(end - running_.begin());
}

bool ExecutorModel::Turn() {
  if (!problem_.empty()) return false;
  const bool waits_for_idle = options_.flush_always && flushing_;
  const size_t started_before = trace_->all.size();
  bool any = timing_() % 4 == 0 && !waits_for_idle && NextFromOutside();
  AskCompute();
  // The thread of the I/O lane may come late.
  if (timing_() % 2 == 0 || FindEndable() == 0) AskIo();
  any |= trace_->all.size() > started_before;
  const size_t endable = FindEndable();
  if (endable == 0) return any || NextFromOutside();
  const size_t next = timing_() % endable;
  const uint32_t task = running_[next];
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(next));
  End(task);
  return true;
}

std::string ExecutorModel::Run(const RunOptions& options, Trace* trace) {
  Begin(options, trace);
  while (Turn()) {
    if (done_ == options.stop_after) return problem_.empty() ? GiveUp() : problem_;
  }
  return Outcome();
}

}  // namespace engine::test
