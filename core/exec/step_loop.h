// The loop of a training step: which tasks are ready, what the scheduler makes of that, and the
// versions of the parameters. It has no thread, clock, device or network; whoever drives it brings
// them (StepLoop::Calls): the executor real ones, the simulator formulas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/exec/task_graph.h"
#include "core/trace/recorder.h"
#include "engine/status.h"

namespace engine::exec {

// Not synchronised. Calls may give up a lock that guards the loop, and Finish may be called then.
class StepLoop {
 public:
  class Calls {
   public:
    // Runs a compute task, with Start before it and Finish behind it, and starts what may start
    // then.
    virtual Status Run(const Task& task) = 0;
    // The scheduler holds what is ready. Returns when something has changed, or the error of
    // Stalled when nothing is under way that could change something.
    virtual Status Wait() = 0;

   protected:
    ~Calls() = default;
  };

  // `graph` is borrowed. The scheduler hears of everything that happens; its name is for messages.
  StepLoop(const TaskGraph& graph, Scheduler& scheduler, std::string scheduler_name);

  // A new step: its forward tasks become ready as soon as what they read is there.
  void BeginStep(uint64_t step, int64_t now_ns);
  // No step follows before all that is pending is done.
  void BeginFlush() { scheduler_.On(SchedulerEvent{.kind = EventKind::kFlush, .step = step_}); }
  // The run is given up.
  void Abandon() { scheduler_.On(SchedulerEvent{.kind = EventKind::kError}); }

  // Runs compute tasks until `done`, or until a call fails. kPlugin names the scheduler and the
  // task when it asks for one that is not ready.
  Status Drive(bool (StepLoop::*done)() const, Calls& calls);
  // Forward, backward, local hooks; and the statistics of the step are there.
  bool HeadDone() const { return head_left_ == 0 && !statistics_pending_; }
  bool TailDone() const { return tail_left_ == 0; }

  // The transfer that shall start next, to be told by Start; kNoTask: none now. Errors as in Drive.
  Result<uint32_t> NextTransfer();
  // Rank 0's scheduler says that `task` is next: false while it is not ready here.
  bool FollowTransfer(uint32_t task);

  void Start(uint32_t task, int64_t now_ns);
  void Finish(uint32_t task, int64_t now_ns);

  // Of a run that was given up: the newest step whose updates are all done once those that are `left`
  // have been run, and the newest that has begun.
  struct Updated {
    uint64_t step = 0, begun = 0;
    std::vector<uint32_t> left;
  };
  Updated LastUpdated() const;

  // The error of a loop in which nothing is under way and the scheduler holds everything.
  Status Stalled() const;
  // Of the newest instance of a task.
  uint64_t StepOf(const Task& task) const { return task.tail ? tail_step_ : step_; }
  const trace::Span& SpanOf(uint32_t task) const { return spans_[task]; }

 private:
  enum class Phase : uint8_t { kWaiting, kReady, kStarted, kDone };

  Status Check(const Action& action, Lane lane) const;
  Status CheckVersions(const Task& task) const;
  void MakeReady(uint32_t task, int64_t now_ns);
  void Satisfy(uint32_t task, int64_t now_ns);

  const TaskGraph& graph_;
  Scheduler& scheduler_;
  const std::string scheduler_name_;
  std::vector<Phase> phase_;
  std::vector<int32_t> waits_for_;  // of the next instance of a task
  std::vector<trace::Span> spans_;  // of the newest instance of a task, without its end
  std::vector<int32_t> writers_, writers_left_;  // by parameter: tasks that complete it
  std::vector<uint64_t> version_;                // by parameter: steps whose update is done
  size_t head_count_ = 0, tail_count_ = 0;       // tasks of a step, without the statistics
  size_t head_left_ = 0, tail_left_ = 0;
  bool statistics_pending_ = false;
  uint64_t step_ = 0, tail_step_ = 0;
  uint64_t steps_begun_ = 0;
};

}  // namespace engine::exec
