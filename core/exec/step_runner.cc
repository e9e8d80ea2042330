// Invariants:
// 1. mutex_ guards the loop with its scheduler, the order of transfers and all bookkeeping. No task
//    runs and no transfer is submitted under it: Run and StartTransfer give it up for that.
// 2. One thread pumps at a time (pumping_), so transfers are submitted in the order in which they
//    were chosen, which is the order of their numbers. Whoever comes meanwhile goes: the pumping
//    thread has given up the lock for a submission, and looks at everything again behind it.
// 3. failure_ is set once. After that nothing is started: Pump looks at it before each transfer,
//    and Run and Wait return it.
// 4. changes_ counts what may change the answer of the scheduler for the compute lane: a task has
//    ended, a transfer was started, the run has failed. Whoever adds to it has the lock and notifies
//    behind it: Pump does when it stops. Next, and then Wait, look at it without a gap between.
// 5. Where work is queued (HostStep::queues), only the thread of the rank pumps: a thread of the
//    communicator takes what has ended and wakes it.
// 6. A slot is free, under way or ended. It leaves free_ under the lock and is the submitter's
//    alone, without it, until OnDone takes the end of its work and adds it to ended_, once, on any
//    thread, perhaps inside of Submit; TakeCompletions frees it. So the order of ends is kept, and
//    no list grows in a step.
// 7. calling_ keeps the runner alive until the last OnDone has returned.
// 8. Of plugins only the scheduler is called under the lock, which keeps its calls apart; what a hook,
//    a device or a work says is asked for without it. The scheduler stays under it because each of
//    its calls is part of a change of the loop: a lock of its own would be held from the same line to
//    the same line, and the ends of transfers and the failure would need a second one, which each task
//    would take twice, for a tenth to a third more of what it costs. One that hangs is named all the
//    same, as CallWatch needs no lock, and the launcher hears of it first.
// 9. What is open on a lane (CallWatch): a task, or the scheduler while the loop is driven, on the
//    compute lane; on the other the start of a transfer, or the scheduler while a thread pumps, of
//    which there is one. A transfer that is started by the thread of the rank is open on both, so its
//    limit is the shorter one.
#include "core/exec/step_runner.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/clock.h"
#include "core/base/deadline.h"

namespace engine::exec {
namespace {

using base::CallWatch;
using base::OpenCall;

// An op that waits for other ranks hears of a failure through the communicator that it waits with.
void EndGathers(const StepParts& parts, const Status& reason) {
  if (parts.gathers != nullptr) parts.gathers->communicator().Abort(reason);
}

// A transfer that met another: an order that is static on one rank is not on the other.
Status Named(const StepParts& parts, const Task& task, const Status& failure) {
  const Status named = failure.WithContext("%s", task.name.c_str());
  if (named.code() != StatusCode::kInvalidArgument) return named;
  return Status::Error(StatusCode::kPlugin, "scheduler '%s': %s",
                       parts.options.scheduler_name.c_str(), named.message())
      .WithRank(named.rank());
}

StepCalls DescribeStep(const StepParts& parts) {
  StepCalls calls;
  const ExecutorOptions& options = parts.options;
  CallWatch* const watch = parts.plugins.watch;
  const auto describe = [watch](const std::string& who, const std::string& what, int64_t limit_ms) {
    return watch != nullptr ? watch->Describe(who + " has not " + what, limit_ms) : nullptr;
  };
  const std::string communicator = "communicator '" + options.communicator_name + "'";
  const std::string scheduler = "scheduler '" + options.scheduler_name + "'";
  const int64_t call_ms = watch != nullptr ? watch->limit_ms() : 0;
  for (const Task& task : parts.tasks.tasks) {
    const CallWatch::Call* call = nullptr;  // of ops, which name themselves (BoundCalls)
    const std::string returned = "returned from '" + task.name + "'";
    if (task.info.kind == TaskKind::kTransfer) {
      call =
          describe(communicator, "returned from Submit of '" + task.name + "'", options.timeout_ms);
    } else if (task.hook != graph::kNone) {
      call = describe("hook '" + options.hook_names[task.hook] + "'", returned, call_ms);
    } else if (task.info.kind == TaskKind::kUpdate) {
      call = describe("optimizer '" + options.optimizer_name + "'", returned, call_ms);
    }
    calls.tasks.push_back(call);
  }
  const int64_t limit_ms = options.timeout_ms + std::min(options.timeout_ms, kGraceMs);
  calls.scheduler = describe(scheduler, "returned from On or Next", limit_ms);
  calls.transfers = describe(communicator, "ended the transfers of a step", limit_ms);
  calls.leader = describe("rank 0", "said which transfer comes next", limit_ms);
  return calls;
}

}  // namespace

StepRunner::StepRunner(HostStep& step, base::Store* store)
    : step_(step),
      parts_(step.parts()),
      store_(store),
      watch_(parts_.plugins.watch),
      calls_(DescribeStep(parts_)),
      loop_(parts_.tasks, *parts_.plugins.scheduler, parts_.options.scheduler_name),
      recorder_(parts_.options.trace_spans),
      // The host of an accelerator is up to two steps ahead.
      slots_(parts_.tasks.tasks.size() * (step.queues() ? 3 : 1)) {
  free_.reserve(slots_.size());
  ended_.reserve(slots_.size());
  for (Slot& slot : slots_) free_.push_back(&slot);
  step.Attach(*this);
  if (!parts_.order.follows()) return;
  store->Listen([this](std::string_view text) {
    Lock lock(mutex_);
    Status taken = parts_.order.TakeTicket(text);
    if (!taken.ok()) Fail(std::move(taken));
    PumpAside(lock);
  });
}

// In this order: nobody brings tickets; no recording can be launched; what hangs in the communicator
// ends; what is queued on the device ends, and with it what the communicator queued there; then the
// callbacks, which find a failure and start nothing. Memory that a communicator still writes to
// cannot be freed; one that was aborted ends everything within a second.
bool StepRunner::End() {
  if (parts_.order.follows()) store_->Listen(nullptr);
  step_.Abandon();
  const auto is_busy = [this] {
    const std::lock_guard lock(mutex_);
    return in_flight() > 0;
  };
  if (is_busy()) {
    const OpenCall open(watch_, "communicator '" + parts_.options.communicator_name + "'", "Abort");
    parts_.plugins.communicator->Abort(Status::Error(StatusCode::kAborted, "the run was given up"));
  }
  step_.End();
  const int64_t limit_ms = parts_.options.drain_ms;
  bool ended = parts_.submitter.Drain(limit_ms) &&
               (parts_.gathers == nullptr || parts_.gathers->Drain(limit_ms));
  Lock lock(mutex_);
  Fail(Status::Error(StatusCode::kAborted, "the run is over"));
  const base::TimePoint deadline = base::DeadlineIn(limit_ms);
  const auto is_over = [this] { return in_flight() == 0 && calling_ == 0; };
  for (TakeCompletions(); ended && !is_over(); TakeCompletions()) {
    ended = idle_.wait_until(lock, deadline, [&] { return !ended_.empty() || is_over(); });
  }
  return ended;
}

// With keep_states all updates of a step become ready at once; one that has begun has ended, or its
// failure ends the run.
Result<StepLoop::Updated> StepRunner::FinishUpdates() {
  const StepLoop::Updated updated = loop_.LastUpdated();
  for (const uint32_t task : updated.left) {
    ENGINE_RETURN_IF_ERROR(step_.Run(parts_.tasks.tasks[task]));
  }
  return updated;
}

Status StepRunner::Begin(uint64_t step) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return failure_;
  const int64_t now = base::NowNs();
  Record(trace::SpanKind::kStep, trace::kNoTask, step_begin_ns_, now);
  now_step_ = step;
  step_begin_ns_ = now;
  waited_seconds_ = 0;
  return {};
}

Status StepRunner::RunHead() {
  Lock lock(mutex_);
  const OpenCall open(watch_, CallWatch::kCompute, calls_.scheduler);
  loop_.BeginStep(now_step_, step_begin_ns_);
  return Drive(lock, &StepLoop::HeadDone);
}

Status StepRunner::RunTail() {
  Lock lock(mutex_);
  const OpenCall open(watch_, CallWatch::kCompute, calls_.scheduler);
  loop_.BeginFlush();
  return Drive(lock, &StepLoop::TailDone);
}

bool StepRunner::TailDone() const {
  const std::lock_guard lock(mutex_);
  return loop_.TailDone();
}

Status StepRunner::ReportReplay(uint32_t task) {
  Lock lock(mutex_);
  Transfer nothing = step_.MakeTransfer(parts_.tasks.tasks[task], now_step_);
  nothing.count = 0;
  parts_.order.Number(&nothing);
  const trace::Span span{
      .task = task, .step = now_step_, .ready_ns = step_begin_ns_, .begin_ns = base::NowNs()};
  lock.unlock();
  return Submit(span, nothing, nullptr);
}

Status StepRunner::EndStep() {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) {
    const int64_t begin = std::exchange(step_begin_ns_, 0);
    Record(trace::SpanKind::kStep, trace::kNoTask, begin, base::NowNs());
  }
  return failure_;
}

void StepRunner::EndFlush(int64_t begin_ns) {
  const std::lock_guard lock(mutex_);
  Record(trace::SpanKind::kFlush, trace::kNoTask, begin_ns, base::NowNs());
}

// What has become ready may let transfers start.
Status StepRunner::Drive(Lock& lock, bool (StepLoop::*done)() const) {
  Pump(lock);
  lock_ = &lock;
  wait_begin_ns_ = 0;
  ENGINE_RETURN_IF_ERROR(failure_.ok() ? loop_.Drive(done, *this) : failure_);
  // For something else than a task: the statistics, the last transfer.
  EndWait(trace::kNoTask, base::NowNs());
  return failure_;
}

// The lane was waiting until now, for `task`.
void StepRunner::EndWait(uint32_t task, int64_t now_ns) {
  if (wait_begin_ns_ == 0) return;
  Record(trace::SpanKind::kWait, task, wait_begin_ns_, now_ns);
  wait_begin_ns_ = 0;
}

void StepRunner::Record(trace::SpanKind kind, uint32_t task, int64_t begin_ns, int64_t end_ns) {
  if (begin_ns == 0) return;  // it has been recorded
  const uint64_t step = task == trace::kNoTask ? now_step_ : loop_.StepOf(parts_.tasks.tasks[task]);
  recorder_.Record(
      {.kind = kind, .task = task, .step = step, .begin_ns = begin_ns, .end_ns = end_ns});
}

Status StepRunner::Run(const Task& task) {
  loop_.Start(task.info.id, base::NowNs());
  trace::Span span = loop_.SpanOf(task.info.id);
  EndWait(task.info.id, span.begin_ns);
  lock_->unlock();
  Status status;
  {
    const OpenCall open(watch_, CallWatch::kCompute, calls_.tasks[span.task]);
    status = step_.Run(task);
  }
  lock_->lock();
  ENGINE_RETURN_IF_ERROR(status);
  span.end_ns = base::NowNs();
  recorder_.Record(span);
  loop_.Finish(span.task, span.end_ns);
  ++changes_;
  Pump(*lock_);
  return failure_;
}

// The compute lane has nothing to run. Transfers have deadlines of their own; the watch only catches a
// communicator that breaks its contract, or a rank 0 that decides nothing, while nothing moves, and ends the run.
Status StepRunner::Wait() {
  const bool something_comes = in_flight() > 0 || pumping_ || parts_.order.follows();
  if (!something_comes || step_.queues()) return loop_.Stalled();
  const int64_t begin = base::NowNs();
  if (wait_begin_ns_ == 0) wait_begin_ns_ = begin;
  const CallWatch::Call* const call = in_flight() > 0 ? calls_.transfers : calls_.leader;
  const auto has_changed = [this, seen = changes_] { return changes_ != seen; };
  for (bool ended = false; !ended;) {
    const uint64_t moved = parts_.submitter.bytes_moved();
    const OpenCall open(watch_, CallWatch::kCompute, call);
    do {
      ended = changed_.wait_until(*lock_, base::DeadlineIn(parts_.options.timeout_ms), has_changed);
    } while (!ended && parts_.submitter.bytes_moved() == moved);
  }
  waited_seconds_ += static_cast<double>(base::NowNs() - begin) * 1e-9;
  return failure_;
}

// Takes what has ended and starts what may start, until there is nothing of either.
void StepRunner::Pump(Lock& lock) {
  if (pumping_) return;
  pumping_ = true;
  const OpenCall open(watch_, CallWatch::kIo, calls_.scheduler);
  TakeCompletions();
  while (failure_.ok()) {
    const Result<uint32_t> next =
        parts_.order.follows() ? parts_.order.NextTicket(loop_) : loop_.NextTransfer();
    if (next.ok() && *next == trace::kNoTask) break;
    Status status = next.ok() ? StartTransfer(lock, *next) : next.status();
    if (!status.ok()) Fail(std::move(status));
    TakeCompletions();
  }
  pumping_ = false;
  changed_.notify_all();
}

// On another thread than the rank's own, which may wait in an op meanwhile.
void StepRunner::PumpAside(Lock& lock) {
  if (step_.queues()) {
    TakeCompletions();
    changed_.notify_all();
  } else {
    Pump(lock);
  }
  if (failure_.ok()) return;
  const Status failure = failure_;
  lock.unlock();
  EndGathers(parts_, failure);
  lock.lock();
}

// With the lock. A result is taken before the tasks that wait for it can become ready.
void StepRunner::TakeCompletions() {
  while (!ended_.empty()) {
    Slot* const slot = ended_.front();
    const trace::Span span = slot->span;
    Status status = std::move(slot->status);
    ended_.erase(ended_.begin());
    free_.push_back(slot);
    const Task& task = parts_.tasks.tasks[span.task];
    if (!status.ok()) status = Named(parts_, task, status);
    if (status.ok() && !step_.queues()) status = step_.TakeResult(task);
    if (!status.ok()) {
      Fail(std::move(status));
      continue;
    }
    recorder_.Record(span);
    if (!step_.queues()) {
      loop_.Finish(span.task, span.end_ns);
      ++changes_;
    } else if (task.data == TransferData::kStatistics) {
      // What follows it was queued when it was submitted.
      reported_step_ = span.step;
    }
  }
}

// Its number and its place in the log are given with the lock, in the order of submission. What ends
// inside of Submit waits in ended_ until this thread takes it.
Status StepRunner::StartTransfer(Lock& lock, uint32_t id) {
  const Task& task = parts_.tasks.tasks[id];
  Transfer transfer = step_.MakeTransfer(task, loop_.StepOf(task));
  parts_.order.Number(&transfer);
  loop_.Start(id, base::NowNs());
  const trace::Span span = loop_.SpanOf(id);
  ++changes_;
  lock.unlock();
  const OpenCall open(watch_, CallWatch::kIo, calls_.tasks[id]);
  Stream* follower = nullptr;
  Status status = step_.BeginTransfer(task, &follower);
  if (status.ok()) status = parts_.order.Announce(transfer, id);
  if (status.ok()) status = Submit(span, transfer, follower);
  if (status.ok()) status = step_.EndTransfer(task);
  lock.lock();
  if (!status.ok()) return Named(parts_, task, status);
  if (step_.queues()) loop_.Finish(id, base::NowNs());
  return {};
}

// Without the lock. `follower`, if not null, is made to wait for the end, before that can be taken,
// which releases the work.
Status StepRunner::Submit(const trace::Span& span, const Transfer& transfer, Stream* follower) {
  Lock lock(mutex_);
  if (free_.empty()) free_.push_back(&slots_.emplace_back());
  Slot* const slot = free_.back();
  free_.pop_back();
  lock.unlock();
  *slot = {.runner = this, .span = span};
  Status status = parts_.submitter.Submit({&transfer, 1}, &slot->work);
  if (!status.ok()) {
    lock.lock();
    free_.push_back(slot);
    return status;
  }
  if (follower != nullptr) status = slot->work->WaitStream(follower);
  slot->work->OnDone(&StepRunner::OnDone, slot);
  return status;
}

// On a thread of the communicator, or inside of Submit. What comes too early or twice is no end.
// Notifies under the lock: the runner may be destroyed as soon as nobody is in here.
void StepRunner::OnDone(void* context) {
  auto* const slot = static_cast<Slot*>(context);
  StepRunner& runner = *slot->runner;
  const bool is_under_way = slot->work != nullptr;
  if (is_under_way) {
    slot->span.end_ns = base::NowNs();
    slot->span.wire_ns = slot->work->started_ns();
  }
  Status status = runner.parts_.submitter.Take(&slot->work);
  Lock lock(runner.mutex_);
  if (is_under_way && slot->work == nullptr) {
    slot->status = std::move(status);
    runner.ended_.push_back(slot);
  } else {
    const StepParts& parts = runner.parts_;
    runner.Fail(Named(parts, parts.tasks.tasks[slot->span.task], status));
  }
  ++runner.calling_;
  runner.PumpAside(lock);
  if (--runner.calling_ == 0) runner.idle_.notify_all();
}

bool StepRunner::AwaitReports(uint64_t step, bool succeeds, int64_t limit_ms) {
  Lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(limit_ms), [&] {
    const bool all = step == kAllSteps ? in_flight() == 0 : reported_step_ >= step;
    return !failure_.ok() || (succeeds && all);
  });
}

void StepRunner::Number(Transfer* transfer) {
  const std::lock_guard lock(mutex_);
  ENGINE_CHECK(loop_.TailDone(), "a transfer outside of a step while one is under way");
  parts_.order.Number(transfer);
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
  EndGathers(parts_, reason);
}

// Others hear of it at once: from the communicator, which lets its peers know, and from the launcher.
// The first reason stays, so a rank that fails because of another says so.
Status StepRunner::GiveUp(Status status) {
  {
    const std::lock_guard lock(mutex_);
    Fail(std::move(status));
    status = failure_;
    const OpenCall open(watch_, CallWatch::kCompute, calls_.scheduler);
    loop_.Abandon();
  }
  step_.Abandon();  // an abort may wait until nobody can launch recorded transfers
  const OpenCall open(watch_, "communicator '" + parts_.options.communicator_name + "'",
                      std::string("Abort after: ") + status.message());
  parts_.plugins.communicator->Abort(status);
  EndGathers(parts_, status);
  return status;
}

trace::SpanRecorder StepRunner::recorded() const {
  const std::lock_guard lock(mutex_);
  return recorder_;
}

// A number is given under the lock of the runner, and the transfer is submitted without it. Nobody
// else submits meanwhile: no step is under way (StepRunner::Number checks it), and a rank that
// follows tickets holds back those of later transfers until this one has its number.
// After a failure the caller frees what did not end, so this waits for that.
Status BlockingTransfers::RunTogether(std::span<Transfer> transfers, int64_t timeout_ms) {
  const size_t at_once = submitter_.groups() ? transfers.size() : 1;
  for (; !transfers.empty(); transfers = transfers.subspan(at_once)) {
    for (Transfer& transfer : transfers.first(at_once)) {
      transfer.timeout_ms = timeout_ms != 0 ? timeout_ms : options_.timeout_ms;
      runner_.Number(&transfer);
    }
    Status status = submitter_.Run(transfers.first(at_once));
    if (status.ok()) continue;
    status = runner_.GiveUp(std::move(status));
    (void)submitter_.Drain(options_.drain_ms);
    return status;
  }
  return {};
}

}  // namespace engine::exec
