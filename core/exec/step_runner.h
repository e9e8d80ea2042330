// Runs the tasks of steps on the threads that are there.
//
// Two kinds of threads are at work. The thread of the rank runs compute tasks. When a transfer has
// ended, the thread of the communicator that says so asks the scheduler for the next ones and
// submits them (Pump), so that the network does not wait for the end of a compute task. Where
// HostStep::queues, the thread of the rank does all of it. What calls what, of a task that the
// scheduler has chosen:
//
//   thread of the rank   RunHead, RunTail -> StepLoop::Drive -> Run -> HostStep::Run -> Pump
//   thread that pumps    Pump -> StepLoop::NextTransfer -> StartTransfer -> Communicator::Submit
//   of the communicator  OnDone -> Pump -> TakeCompletions -> HostStep::TakeResult, StepLoop::Finish
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "core/exec/host_step.h"
#include "core/exec/step_loop.h"
#include "core/trace/recorder.h"

namespace engine::exec {

// What is open on a lane: a task that runs or a transfer that starts, by its id, or what is between.
// All null: nobody looks.
struct StepCalls {
  std::vector<const base::CallWatch::Call*> tasks;
  const base::CallWatch::Call *scheduler = nullptr, *transfers = nullptr, *leader = nullptr;
};

class StepRunner final : private StepLoop::Calls {
 public:
  static constexpr uint64_t kAllSteps = UINT64_MAX;

  // All is borrowed. Attaches itself to `step`, and to the store when it follows rank 0.
  StepRunner(HostStep& step, base::Store* store);
  // Aborts the communicators if transfers are under way, and waits for their ends. Once, before
  // memory goes: false when one does not end, so that this and all memory must stay. Again it only
  // says that. [compute-lane]
  bool End();

  // After End, of a run that was given up: makes the updates that are ready.
  Result<StepLoop::Updated> FinishUpdates();

  // All up to EndFlush: [compute-lane]. A step begins, or the failure of the run.
  Status Begin(uint64_t step);
  // Returns when the head of the step that has begun is done; what is left of the one before is
  // done too, then.
  Status RunHead();
  // Returns when nothing is left of it.
  Status RunTail();
  bool TailDone() const;
  // Of a step that the device replays: its tasks stay as they are, and `task`, the transfer of the
  // statistics, without data, tells when the transfers in it have ended.
  Status ReportReplay(uint32_t task);
  // How long there was nothing to run since Begin.
  double waited_seconds() const { return waited_seconds_; }
  // The step has ended; so has a flush that began at `begin_ns`.
  Status EndStep();
  void EndFlush(int64_t begin_ns);

  // Where work is queued: waits until the communicator has reported the transfers of all steps up
  // to `step`, if `succeeds`, or a failure. False after `limit_ms`.
  bool AwaitReports(uint64_t step, bool succeeds, int64_t limit_ms);

  // Gives a transfer outside of a step its place in the order. [compute-lane]
  void Number(Transfer* transfer);

  // The first reason to end the run. [any-thread]
  Status failure() const;
  // Ends whatever waits, and what comes later, with `reason`. [any-thread]
  void Abort(const Status& reason);
  // The step has failed here, so it can never end on the others: aborts the communicator. Returns
  // `status`, or what it comes from. [compute-lane]
  Status GiveUp(Status status);

  // What happened so far.
  trace::SpanRecorder recorded() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  // A transfer under way, which its end is told of by address.
  struct Slot {
    StepRunner* runner = nullptr;
    trace::Span span;
    Work* work = nullptr;  // until it has ended with this:
    Status status;
  };

  Status Run(const Task& task) override;
  Status Wait() override;
  Status Drive(Lock& lock, bool (StepLoop::*done)() const);
  void EndWait(uint32_t task, int64_t now_ns);
  void Record(trace::SpanKind kind, uint32_t task, int64_t begin_ns, int64_t end_ns);
  void Pump(Lock& lock);
  void PumpAside(Lock& lock);
  void TakeCompletions();
  Status StartTransfer(Lock& lock, uint32_t task);
  Status Submit(const trace::Span& span, const Transfer& transfer, Stream* follower);
  static void OnDone(void* slot);
  size_t in_flight() const { return slots_.size() - free_.size(); }
  void Fail(Status status);

  HostStep& step_;
  const StepParts parts_;
  base::Store* const store_;
  base::CallWatch* const watch_;  // null: nobody looks
  const StepCalls calls_;

  // Of the thread of the rank.
  int64_t wait_begin_ns_ = 0;  // 0: it was not waiting
  double waited_seconds_ = 0;
  Lock* lock_ = nullptr;  // of Drive, for Run and Wait

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // of changes_, and of what AwaitReports waits for
  StepLoop loop_;                    // guarded by mutex_, as all below and calls of the scheduler
  trace::SpanRecorder recorder_;
  uint64_t now_step_ = 0;
  int64_t step_begin_ns_ = 0;  // 0: none has begun
  bool pumping_ = false;
  uint64_t changes_ = 0;
  uint64_t reported_step_ = 0;  // whose statistics are known to have arrived, where work is queued
  Status failure_;
  std::deque<Slot> slots_;  // their addresses stay
  std::vector<Slot*> free_, ended_;
  size_t calling_ = 0;            // threads in OnDone
  std::condition_variable idle_;  // there is none of those any more
};

// Transfers outside of a step, each waited for: the beginning of a run, evaluation, checkpoints.
// [compute-lane] When no step is under way. A transfer that fails ends the run.
class BlockingTransfers {
 public:
  // All is borrowed.
  BlockingTransfers(Submitter& submitter, StepRunner& runner, const ExecutorOptions& options)
      : submitter_(submitter), runner_(runner), options_(options) {}

  // With the deadline of a transfer, or another one.
  Status Run(Transfer transfer, int64_t timeout_ms = 0) {
    return RunTogether({&transfer, 1}, timeout_ms);
  }
  // In any order; as one group where the communicator has groups. Numbers the transfers.
  Status RunTogether(std::span<Transfer> transfers, int64_t timeout_ms = 0);

 private:
  Submitter& submitter_;
  StepRunner& runner_;
  const ExecutorOptions& options_;
};

}  // namespace engine::exec
