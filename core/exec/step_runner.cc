// Invariants:
// 1. mutex_ guards the loop with its scheduler, the order of transfers and all bookkeeping. No task
//    runs and no transfer is submitted under it: Run and StartTransfer give it up for that.
// 2. One thread pumps at a time (pumping_), so transfers are submitted in the order in which they
//    were chosen, which is the order of their numbers. Whoever comes meanwhile sets pump_again_ and
//    goes; the pumping thread sees that before it stops, under the lock, so nothing is left.
// 3. failure_ is set once. After that nothing is started: Pump looks at it before each transfer,
//    and Run and Wait return it.
// 4. Whoever changes what Wait waits for adds to changes_ under the lock and notifies after it:
//    Pump does when it stops. A waiter that saw another thread pump looks again when that stops, as
//    it may have made a compute task ready.
// 5. Where work is queued (HostStep::queues), only the thread of the rank pumps: a thread of the
//    communicator takes what has ended and wakes it.
#include "core/exec/step_runner.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "core/base/clock.h"

namespace engine::exec {

StepRunner::StepRunner(plugin::PluginSet& plugins, const ExecutorOptions& options,
                       const TaskGraph& tasks, OrderAgreement& order, HostStep& step,
                       base::Store* store)
    : plugins_(plugins),
      options_(options),
      tasks_(tasks),
      order_(order),
      step_(step),
      store_(store),
      loop_(tasks, *plugins.scheduler, options.scheduler_name),
      recorder_(options.trace_spans),
      // The host of an accelerator is up to two steps ahead.
      transfers_(*plugins.communicator, tasks.tasks.size() * (step.queues() ? 3 : 1),
                 [this] { PumpAside(Lock(mutex_)); }) {
  step.Attach(*this);
  if (!order.follows()) return;
  store->Listen([this](std::string_view text) {
    Lock lock(mutex_);
    Status taken = order_.TakeTicket(text);
    if (!taken.ok()) Fail(std::move(taken));
    PumpAside(std::move(lock));
  });
}

// In this order: nobody brings tickets; no recording can be launched; what hangs in the communicator
// ends; what is queued on the device ends, and with it what the communicator queued there; then the
// callbacks.
StepRunner::~StepRunner() {
  if (order_.follows()) store_->Listen(nullptr);
  step_.Abandon();
  if (transfers_.in_flight() > 0) {
    plugins_.communicator->Abort(Status::Error(StatusCode::kAborted, "the run was given up"));
  }
  step_.End();
  {
    // Callbacks may still come; they find a failure and start nothing.
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = Status::Error(StatusCode::kAborted, "the run is over");
  }
  transfers_.Drain();
}

Status StepRunner::RunHead(uint64_t step, double* waited_seconds) {
  {
    Lock lock(mutex_);
    const int64_t now = base::NowNs();
    RecordStep(now);
    now_step_ = step;
    step_begin_ns_ = now;
    loop_.BeginStep(step, now);
    Pump(lock);
  }
  return Drive(&StepLoop::HeadDone, waited_seconds);
}

Status StepRunner::RunTail(double* waited_seconds) {
  {
    Lock lock(mutex_);
    loop_.BeginFlush();
    Pump(lock);
  }
  return Drive(&StepLoop::TailDone, waited_seconds);
}

bool StepRunner::TailDone() const {
  const std::lock_guard lock(mutex_);
  return loop_.TailDone();
}

Status StepRunner::BeginReplay(uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const int64_t now = base::NowNs();
  RecordStep(now);
  now_step_ = step;
  step_begin_ns_ = now;
  return {};
}

Status StepRunner::ReportReplay(uint32_t task, uint64_t step) {
  trace::Span span{
      .kind = trace::SpanKind::kTask, .task = task, .step = step, .begin_ns = base::NowNs()};
  Transfer nothing;
  {
    const std::lock_guard lock(mutex_);
    span.ready_ns = step_begin_ns_;
    nothing = step_.MakeTransfer(tasks_.tasks[task], step);
    nothing.count = 0;
    order_.Number(&nothing, task);
  }
  return transfers_.Start(span, nothing, nullptr);
}

Status StepRunner::EndStep() {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) RecordStep(base::NowNs());
  return failure_;
}

void StepRunner::EndFlush(int64_t begin_ns) {
  const std::lock_guard lock(mutex_);
  recorder_.Record({.kind = trace::SpanKind::kFlush,
                    .step = now_step_,
                    .begin_ns = begin_ns,
                    .end_ns = base::NowNs()});
}

// From the begin of the step before to now.
void StepRunner::RecordStep(int64_t now_ns) {
  if (step_begin_ns_ == 0) return;
  recorder_.Record({.kind = trace::SpanKind::kStep,
                    .step = now_step_,
                    .begin_ns = step_begin_ns_,
                    .end_ns = now_ns});
  step_begin_ns_ = 0;
}

Status StepRunner::Drive(bool (StepLoop::*done)() const, double* waited_seconds) {
  Lock lock(mutex_);
  lock_ = &lock;
  wait_begin_ns_ = 0;
  waited_seconds_ = 0;
  const Status driven = failure_.ok() ? loop_.Drive(done, *this) : failure_;
  *waited_seconds += waited_seconds_;
  ENGINE_RETURN_IF_ERROR(driven);
  EndWait(trace::kNoTask,
          base::NowNs());  // for something else than a task: the statistics, the last transfer
  return failure_;
}

int64_t StepRunner::Now() {
  return base::NowNs();
}

// The lane was waiting until now, for `task`.
void StepRunner::EndWait(uint32_t task, int64_t now_ns) {
  if (wait_begin_ns_ == 0) return;
  const uint64_t step = task == trace::kNoTask ? now_step_ : loop_.StepOf(tasks_.tasks[task]);
  recorder_.Record({.kind = trace::SpanKind::kWait,
                    .task = task,
                    .step = step,
                    .begin_ns = wait_begin_ns_,
                    .end_ns = now_ns});
  wait_begin_ns_ = 0;
}

Status StepRunner::Run(const Task& task) {
  trace::Span span = loop_.SpanOf(task.info.id);
  EndWait(task.info.id, span.begin_ns);
  DeviceOrder* const order = step_.order();
  lock_->unlock();
  Status status = order == nullptr ? Status() : order->Wait(task);
  if (status.ok()) status = step_.Run(task);
  if (status.ok() && order != nullptr) status = order->Mark(task);
  lock_->lock();
  ENGINE_RETURN_IF_ERROR(status);
  span.end_ns = base::NowNs();
  Finish(span);
  Pump(*lock_);
  return failure_;
}

// The compute lane has nothing to run. Transfers have deadlines of their own; the one here only
// catches a communicator that breaks its contract, or a rank 0 that decides nothing.
Status StepRunner::Wait() {
  const bool something_comes = transfers_.in_flight() > 0 || pumping_ || order_.follows();
  if (!something_comes || step_.queues()) return loop_.Stalled();
  const int64_t begin = base::NowNs();
  if (wait_begin_ns_ == 0) wait_begin_ns_ = begin;
  const int64_t limit_ms = options_.timeout_ms + kGraceMs;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(limit_ms);
  const uint64_t seen = changes_;
  const bool other_pumps = pumping_;
  const bool woken = changed_.wait_until(*lock_, deadline, [&] {
    return changes_ != seen || !failure_.ok() || (other_pumps && !pumping_);
  });
  waited_seconds_ += static_cast<double>(base::NowNs() - begin) * 1e-9;
  if (woken) return failure_;
  const auto waited = static_cast<long long>(limit_ms);
  if (transfers_.in_flight() > 0) {
    return Status::Error(StatusCode::kTimeout,
                         "%zu transfers did not end within %lld ms; communicator '%s' "
                         "breaks its deadlines",
                         transfers_.in_flight(), waited, options_.communicator_name.c_str());
  }
  const Task* next = loop_.FirstReady();
  return Status::Error(StatusCode::kTimeout,
                       "rank 0 did not say within %lld ms which transfer comes next; '%s' is ready",
                       waited, next == nullptr ? "none" : next->name.c_str())
      .WithRank(0);
}

void StepRunner::Finish(const trace::Span& span) {
  recorder_.Record(span);
  loop_.Finish(span.task, span.end_ns);
  ++changes_;
}

// Takes what has ended and starts what may start, until there is nothing of either.
void StepRunner::Pump(Lock& lock) {
  if (pumping_) {
    pump_again_ = true;
    return;
  }
  pumping_ = true;
  do {
    pump_again_ = false;
    TakeCompletions();
    while (failure_.ok()) {
      const Result<uint32_t> next =
          order_.follows() ? order_.NextTicket(loop_) : loop_.NextTransfer();
      if (next.ok() && *next == trace::kNoTask) break;
      Status status = next.ok() ? StartTransfer(lock, *next) : next.status();
      if (!status.ok()) Fail(std::move(status));
      TakeCompletions();
    }
  } while (pump_again_);
  pumping_ = false;
  changed_.notify_all();
}

// On another thread than the rank's own, which may wait in an op meanwhile.
void StepRunner::PumpAside(Lock lock) {
  if (step_.queues()) {
    TakeCompletions();
    changed_.notify_all();
  } else {
    Pump(lock);
  }
  const Status failure = failure_;
  lock.unlock();
  if (!failure.ok()) EndGathers(failure);
}

// With the lock. A result is taken before the tasks that wait for it can become ready.
void StepRunner::TakeCompletions() {
  TransferLane::Completion completion;
  while (transfers_.Take(&completion)) {
    const Task& task = tasks_.tasks[completion.span.task];
    Status status = std::move(completion.status);
    if (!status.ok()) status = status.WithContext("%s", task.name.c_str());
    if (status.ok() && !step_.queues()) status = step_.TakeResult(task);
    if (!status.ok()) {
      Fail(std::move(status));
    } else if (!step_.queues()) {
      Finish(completion.span);
    } else {  // what follows it was queued when it was submitted
      recorder_.Record(completion.span);
      if (task.data == TransferData::kStatistics) reported_step_ = completion.span.step;
    }
  }
}

// Its number and its place in the log are given with the lock, in the order of submission. What ends
// inside of Submit waits in the lane until this thread takes it.
Status StepRunner::StartTransfer(Lock& lock, uint32_t id) {
  const Task& task = tasks_.tasks[id];
  Transfer transfer = step_.MakeTransfer(task, loop_.StepOf(task));
  order_.Number(&transfer, id);
  loop_.Start(id, base::NowNs());
  const trace::Span span = loop_.SpanOf(id);
  lock.unlock();
  const Status status = Submit(task, span, transfer);
  lock.lock();
  if (!status.ok()) return status.WithContext("%s", task.name.c_str());
  if (step_.queues()) loop_.Finish(id, base::NowNs());
  return {};
}

// Without the lock.
Status StepRunner::Submit(const Task& task, const trace::Span& span, const Transfer& transfer) {
  DeviceOrder* const order = step_.order();
  if (order != nullptr) ENGINE_RETURN_IF_ERROR(order->Wait(task));
  ENGINE_RETURN_IF_ERROR(order_.Announce(transfer, task.info.id));
  Stream* const follower = order == nullptr ? nullptr : order->transfers();
  ENGINE_RETURN_IF_ERROR(transfers_.Start(span, transfer, follower));
  if (order != nullptr) ENGINE_RETURN_IF_ERROR(order->Mark(task));
  return task.data == TransferData::kStatistics ? step_.FollowStatistics(task) : Status();
}

bool StepRunner::AwaitReports(uint64_t step, bool succeeds, int64_t limit_ms) {
  Lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(limit_ms), [&] {
    const bool all = step == kAllSteps ? transfers_.in_flight() == 0 : reported_step_ >= step;
    return !failure_.ok() || (succeeds && all);
  });
}

void StepRunner::Number(Transfer* transfer) {
  const std::lock_guard lock(mutex_);
  ENGINE_CHECK(loop_.TailDone(), "a transfer outside of a step while one is under way");
  order_.Number(transfer, trace::kNoTask);
}

Status StepRunner::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void StepRunner::Fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
  ++changes_;
}

void StepRunner::Abort(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    Fail(reason);
    changed_.notify_all();
  }
  EndGathers(reason);
}

// An op that waits for other ranks hears of a failure through the communicator that it waits with.
void StepRunner::EndGathers(const Status& reason) {
  if (options_.replicas != nullptr && options_.replicas != plugins_.communicator.get()) {
    options_.replicas->Abort(reason);
  }
}

// Others hear of it at once: from the communicator, which lets its peers know, and from the launcher.
// The first reason stays, so a rank that fails because of another says so.
Status StepRunner::GiveUp(Status status) {
  {
    const std::lock_guard lock(mutex_);
    // What a device says after that may be a consequence.
    if (step_.queues() && !failure_.ok()) status = failure_;
    Fail(status);
    loop_.Abandon();
  }
  step_.Abandon();  // an abort may wait until nobody can launch recorded transfers
  plugins_.communicator->Abort(status);
  EndGathers(status);
  return order_.Explain(std::move(status));
}

void StepRunner::AddTo(trace::RankTimeline* timeline) const {
  const std::lock_guard lock(mutex_);
  timeline->dropped = recorder_.dropped();
  timeline->spans = recorder_.InOrder();
}

}  // namespace engine::exec
