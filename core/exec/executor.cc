#include "core/exec/executor.h"

#include "core/base/clock.h"

namespace engine {
namespace {

// Beyond the deadline of a transfer, for a communicator that does not keep it.
constexpr int64_t kGraceMs = 5000;
// For the logs of other ranks after a failure; they fail at about the same time.
constexpr int64_t kCompareMs = 1000;

}  // namespace

Result<StepResult> Executor::Step(const StepInput& input) {
  StepResult result;
  const int64_t begin = NowNs();
  double waited = 0;
  Status status = RunHead(input, &waited);
  if (status.ok() && accelerator_ != nullptr) {
    auto read = ReadStatistics(input.step - 1);
    if (read.ok()) result = *read;
    status = read.status();
  }
  if (!status.ok()) return GiveUp(std::move(status));
  if (replicas_ != nullptr) waited += replicas_->TakeWaitedSeconds();
  if (accelerator_ == nullptr) {
    const std::lock_guard lock(mutex_);
    result.step = input.step;
    result.statistics = statistics_;
    result.waited_seconds = waited;
  }
  step_end_ns_ = NowNs();
  result.seconds = static_cast<double>(step_end_ns_ - begin) * 1e-9;
  longest_step_ms_ = std::max(longest_step_ms_, (step_end_ns_ - begin) / 1'000'000);
  return result;
}

Status Executor::RunHead(const StepInput& input, double* waited_seconds) {
  ++steps_run_;
  ENGINE_RETURN_IF_ERROR(PrepareStep(input));
  if (CanReplay()) return Replay();
  recording_ = CanRecord();
  if (recording_) {
    ENGINE_RETURN_IF_ERROR(Join());
    ENGINE_RETURN_IF_ERROR(accelerator_->BeginRecording(memory_->stream()));
  }
  BeginStep();
  Status status = Drive(&Executor::HeadDone, waited_seconds);
  if (status.ok() && accelerator_ != nullptr) status = QueueTail(waited_seconds);
  return recording_ ? Record(std::move(status)) : status;
}

// No forward task comes before all of the tail is done.
Status Executor::QueueTail(double* waited_seconds) {
  {
    Lock lock(mutex_);
    plugins_.scheduler->On({.kind = EventKind::kFlush, .step = tail_step_});
    Pump(lock);
  }
  return Drive(&Executor::TailDone, waited_seconds);
}

// What is not a part of the work that may be recorded.
Status Executor::PrepareStep(const StepInput& input) {
  input_ = input;
  if (input_.all_samples == 0) input_.all_samples = input.samples * options_.rank.world_size;
  buffers_differ_ = true;
  parameters_stale_ = sharded_;
  now_ = {.step = input.step, .update_step = input.step, .learning_rate = input.learning_rate};
  stop_asked_[input.step % 2] = input.stop;
  if (accelerator_ != nullptr) ENGINE_RETURN_IF_ERROR(BeginDeviceStep());
  ENGINE_RETURN_IF_ERROR(BeginMicroBatch(0));
  if (accelerator_ == nullptr) memory_->statistics()->stop = input.stop ? 1.0f : 0.0f;
  if (has_row_tables_) ChooseRows(input);
  return {};
}

void Executor::BeginStep() {
  backward_begun_ = false;
  Lock lock(mutex_);
  RecordStepSpan(SpanKind::kStep);
  step_begin_ns_ = NowNs();
  statistics_known_ = false;
  own_count_ = -1;
  state_->BeginStep(input_.step, step_begin_ns_);
  Pump(lock);
}

// From the begin of the step before to now.
void Executor::RecordStepSpan(SpanKind kind) {
  if (step_begin_ns_ == 0) return;
  recorder_.Record(
      {.kind = kind, .step = tail_step_, .begin_ns = step_begin_ns_, .end_ns = NowNs()});
  step_begin_ns_ = 0;
}

bool Executor::flushed() const {
  const std::lock_guard lock(mutex_);
  return TailDone() && !rows_stale_ && !parameters_stale_ && !device_works_;
}

Status Executor::Flush() {
  {
    Lock lock(mutex_);
    if (!failure_.ok()) return failure_;
    RecordStepSpan(SpanKind::kStep);
  }
  if (flushed()) return {};
  const int64_t begin = NowNs();
  double waited = 0;
  Status status = QueueTail(&waited);
  if (status.ok() && rows_stale_) status = LoadUnits(/*row_tables_only=*/true);
  if (status.ok()) status = WaitForDevice();
  if (status.ok() && parameters_stale_) status = GatherParameters();
  if (!status.ok()) return GiveUp(std::move(status));
  const std::lock_guard lock(mutex_);
  recorder_.Record(
      {.kind = SpanKind::kFlush, .step = tail_step_, .begin_ns = begin, .end_ns = NowNs()});
  return {};
}

// Runs compute tasks until `done`; waits when there is none to run.
Status Executor::Drive(bool (Executor::*done)() const, double* waited_seconds) {
  Lock lock(mutex_);
  wait_begin_ns_ = 0;
  while (failure_.ok() && !(this->*done)()) {
    const Action action = plugins_.scheduler->Next(Lane::kCompute);
    ENGINE_RETURN_IF_ERROR(action.kind == ActionKind::kHold ? WaitForChange(lock, waited_seconds)
                                                            : RunNext(lock, action));
  }
  if (wait_begin_ns_ !=
      0) {  // for something else than a task: the statistics, or the last transfer
    recorder_.Record({.kind = SpanKind::kWait,
                      .step = tail_step_,
                      .begin_ns = wait_begin_ns_,
                      .end_ns = NowNs()});
    wait_begin_ns_ = 0;
  }
  return failure_;
}

Status Executor::RunNext(Lock& lock, const Action& action) {
  ENGINE_RETURN_IF_ERROR(state_->Check(action, Lane::kCompute, options_.scheduler_name.c_str()));
  const Task& task = tasks_.tasks[action.task];
  if (task.info.kind == TaskKind::kForward) ENGINE_RETURN_IF_ERROR(state_->CheckVersions(task));
  const int64_t now = NowNs();
  state_->Start(action.task, now);
  if (wait_begin_ns_ != 0) {
    recorder_.Record({.kind = SpanKind::kWait,
                      .task = action.task,
                      .step = state_->StepOf(task),
                      .begin_ns = wait_begin_ns_,
                      .end_ns = now});
    wait_begin_ns_ = 0;
  }
  Span span = BeginSpan(action.task);
  lock.unlock();
  Status status = device_order_ == nullptr ? Status() : device_order_->Wait(task);
  if (status.ok()) status = RunTask(task);
  if (status.ok() && device_order_ != nullptr) status = device_order_->Mark(task);
  lock.lock();
  ENGINE_RETURN_IF_ERROR(status);
  span.end_ns = NowNs();
  Finish(span);
  Pump(lock);
  return {};
}

// Of a task that was started.
Span Executor::BeginSpan(uint32_t task) const {
  return {.kind = SpanKind::kTask,
          .task = task,
          .step = state_->StepOf(tasks_.tasks[task]),
          .ready_ns = state_->ready_ns(task),
          .begin_ns = state_->begin_ns(task)};
}

void Executor::Finish(const Span& span) {
  recorder_.Record(span);
  state_->Finish(span.task, span.end_ns);
  ++changes_;
}

// The compute lane has nothing to run. Transfers have deadlines of their own; the one here only
// catches a communicator that breaks its contract, or a rank 0 that decides nothing.
Status Executor::WaitForChange(Lock& lock, double* waited_seconds) {
  const bool something_comes = transfers_->in_flight() > 0 || pumping_ || follows_;
  if (!something_comes || accelerator_ != nullptr) return Stalled();
  const int64_t begin = NowNs();
  if (wait_begin_ns_ == 0) wait_begin_ns_ = begin;
  const int64_t limit_ms = options_.timeout_ms + kGraceMs;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  const uint64_t seen = changes_;
  const bool other_pumps = pumping_;  // it may find a compute task to be ready
  const bool woken = changed_.wait_until(lock, deadline, [&] {
    return changes_ != seen || !failure_.ok() || (other_pumps && !pumping_);
  });
  *waited_seconds += static_cast<double>(NowNs() - begin) * 1e-9;
  if (woken) return {};
  const auto waited = static_cast<long long>(limit_ms);
  if (transfers_->in_flight() > 0) {
    return Status::Error(StatusCode::kTimeout,
                         "%zu transfers did not end within %lld ms; communicator '%s' "
                         "breaks its deadlines",
                         transfers_->in_flight(), waited, options_.communicator_name.c_str());
  }
  const Task* next = state_->FirstReady();
  return Status::Error(StatusCode::kTimeout,
                       "rank 0 did not say within %lld ms which transfer comes next; '%s' is ready",
                       waited, next == nullptr ? "none" : next->name.c_str())
      .WithRank(0);
}

Status Executor::Stalled() const {
  const Task* task = state_->FirstReady();
  if (task == nullptr) {
    return Status::Error(StatusCode::kInternal, "no task is ready and none is under way");
  }
  return Status::Error(StatusCode::kTimeout,
                       "stalled: scheduler '%s' holds '%s' although nothing is under way",
                       options_.scheduler_name.c_str(), task->name.c_str());
}

// Takes what has ended and starts what may start, until there is nothing of either. One thread does
// it at a time, so that transfers are submitted in the order in which they were chosen; whoever
// comes meanwhile leaves it to that one.
void Executor::Pump(Lock& lock) {
  if (pumping_) {
    pump_again_ = true;
    return;
  }
  pumping_ = true;
  do {
    pump_again_ = false;
    TakeCompletions();
    uint32_t task = 0;
    while (failure_.ok() && NextTransfer(&task)) {
      StartTransfer(lock, task);
      TakeCompletions();
    }
  } while (pump_again_);
  pumping_ = false;
  changed_.notify_all();
}

// On another thread than the rank's own, which may wait in an op meanwhile.
void Executor::PumpAside(Lock lock) {
  if (accelerator_ == nullptr) {
    Pump(lock);
  } else {
    TakeCompletions();
    changed_.notify_all();
  }
  const Status failure = failure_;
  lock.unlock();
  if (!failure.ok()) EndGathers(failure);
}

void Executor::TakeCompletions() {
  TransferLane::Completion completion;
  while (transfers_->Take(&completion)) {
    const Task& task = tasks_.tasks[completion.span.task];
    Status status = std::move(completion.status);
    if (!status.ok()) status = status.WithContext("%s", task.name.c_str());
    if (status.ok() && accelerator_ == nullptr) status = TakeResult(task);
    if (!status.ok()) {
      Fail(std::move(status));
    } else if (accelerator_ == nullptr) {
      Finish(completion.span);
    } else {  // what follows it was queued when it was submitted
      recorder_.Record(completion.span);
      if (task.data == TransferData::kStatistics) reported_step_ = completion.span.step;
    }
  }
}

Status Executor::TakeResult(const Task& task) {
  if (task.data == TransferData::kStatistics) return TakeStatistics();
  return task.data == TransferData::kParameters ? TakeParameters(task) : Status();
}

// A transferred gradient is a sum over all samples of the step, times the scale of the loss; hooks
// and optimizers see the mean.
Status Executor::TakeStatistics() {
  statistics_ = *memory_->statistics();
  statistics_known_ = true;
  const float count = std::max(statistics_.count, 1.0f);
  std::fill(gradient_scale_.begin(), gradient_scale_.end(), 1 / (count * options_.loss_scale));
  return CheckOrderBits(statistics_);
}

// Parts that other ranks have updated come without what ops read of them, or as nothing but that.
Status Executor::TakeParameters(const Task& task) {
  const UnitLayout& unit = memory_->layout().units[task.info.unit];
  if (unit.gathered == DType::kBFloat16) return {};
  return memory_->RefreshCopies(unit.offset, unit.count);
}

Status Executor::CheckOrderBits(const StepStatistics& statistics) const {
  if (communicator_traits_.ordered == 0 || communicator_traits_.measures_only != 0) return {};
  const auto ranks = static_cast<float>(options_.rank.world_size);
  for (const float bit : statistics.order_bits) {
    if (bit == 0 || bit == ranks) continue;
    return Status::Error(StatusCode::kInvalidArgument,
                         "ranks disagree on the transfers of the step before this one");
  }
  return {};
}

bool Executor::NextTransfer(uint32_t* task) {
  if (follows_) return NextTicket(task);
  const Action action = plugins_.scheduler->Next(Lane::kIo);
  if (action.kind == ActionKind::kHold) return false;
  const Status status = state_->Check(action, Lane::kIo, options_.scheduler_name.c_str());
  if (!status.ok()) {
    Fail(status);
    return false;
  }
  *task = action.task;
  return true;
}

// The transfer of the next ticket, once it is ready here too.
bool Executor::NextTicket(uint32_t* task) {
  if (ticket_count_ == 0) return false;
  const Ticket& ticket = tickets_[ticket_head_];
  if (ticket.task >= tasks_.tasks.size() || ticket.sequence <= sequence_) {
    Fail(Status::Error(StatusCode::kInternal,
                       "rank 0 announced transfer %llu (task %u) where transfer %llu is next",
                       static_cast<unsigned long long>(ticket.sequence), ticket.task,
                       static_cast<unsigned long long>(sequence_ + 1)));
    return false;
  }
  // Rank 0 is ahead: transfers outside of a step, such as those of an evaluation, come before it.
  if (ticket.sequence > sequence_ + 1) return false;
  if (state_->phase(ticket.task) != StepState::Phase::kReady) return false;
  *task = ticket.task;
  ticket_head_ = (ticket_head_ + 1) % tickets_.size();
  --ticket_count_;
  plugins_.scheduler->On({.kind = EventKind::kTaskStarted,
                          .task = *task,
                          .step = state_->StepOf(tasks_.tasks[*task])});
  return true;
}

void Executor::StartTransfer(Lock& lock, uint32_t id) {
  const Task& task = tasks_.tasks[id];
  const Transfer transfer = MakeTransfer(task);
  log_.Add(transfer, id);
  state_->Start(id, NowNs());
  const Span span = BeginSpan(id);
  lock.unlock();
  Status status = device_order_ == nullptr ? Status() : device_order_->Wait(task);
  if (leads_) {
    status = store_->Post(
        EncodeTicket({.sequence = transfer.sequence, .key = transfer.key, .task = id}));
  }
  Stream* const follower = device_order_ == nullptr ? nullptr : device_order_->transfers();
  if (status.ok()) status = transfers_->Start(span, transfer, follower);
  if (status.ok() && follower != nullptr) status = device_order_->Mark(task);
  if (status.ok() && accelerator_ != nullptr && task.data == TransferData::kStatistics) {
    status = TakeDeviceStatistics(task);
  }
  lock.lock();
  if (!status.ok()) return Fail(status.WithContext("%s", task.name.c_str()));
  if (accelerator_ == nullptr) return;
  state_->Finish(id, NowNs());
}

void Executor::OnTicket(std::string_view text) {
  const auto ticket = DecodeTicket(text);
  Lock lock(mutex_);
  if (!ticket.ok() || ticket_count_ == tickets_.size()) {
    Fail(Status::Error(StatusCode::kInternal, "rank 0 announces transfers that cannot be"));
  } else {
    tickets_[(ticket_head_ + ticket_count_++) % tickets_.size()] = *ticket;
  }
  PumpAside(std::move(lock));
}

void Executor::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  ++changes_;
}

void Executor::Abort(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    Fail(reason);
    changed_.notify_all();
  }
  EndGathers(reason);
}

// An op that waits for other ranks hears of a failure through the communicator that it waits with.
void Executor::EndGathers(const Status& reason) {
  if (options_.replicas != nullptr && options_.replicas != plugins_.communicator.get()) {
    options_.replicas->Abort(reason);
  }
}

// A step that failed on one rank can never end on the others, so nothing of this rank may stay
// under way.
Status Executor::GiveUp(Status status) {
  {
    const std::lock_guard lock(mutex_);
    // What a device says after that may be a consequence.
    if (accelerator_ != nullptr && !failure_.ok()) status = failure_;
    Fail(status);
    plugins_.scheduler->On({.kind = EventKind::kError});
  }
  recorded_.reset();  // NCCL's abort waits until nobody can launch its recorded transfers
  plugins_.communicator->Abort(status);
  EndGathers(status);
  const bool may_differ =
      status.code() == StatusCode::kTimeout || status.code() == StatusCode::kInvalidArgument;
  if (!may_differ || store_ == nullptr || communicator_traits_.ordered == 0) return status;
  const Status order = CompareLogs(log_, tasks_, options_.rank, *store_, kCompareMs);
  return order.code() == StatusCode::kPlugin ? order : status;
}

}  // namespace engine
