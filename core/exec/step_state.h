// Where each task of the steps under way stands, and the versions of the parameters.
//
// At most two steps overlap: transfers and updates of step t (its tail) and forward tasks of step
// t+1. A task of t+1 cannot become ready before the same task of t is done: forward tasks wait for
// their parameters, whose update is the end of the tail; backward follows all of forward; so by the
// time backward of t+1 begins, nothing of t is left. One state per task is therefore enough.
#pragma once

#include <cstdint>
#include <vector>

#include "core/exec/task_graph.h"
#include "engine/status.h"

namespace engine {

class StepState {
 public:
  enum class Phase : uint8_t { kWaiting, kReady, kStarted, kDone };

  // `graph` is borrowed. The scheduler hears of everything that happens.
  StepState(const TaskGraph& graph, size_t parameter_count, Scheduler& scheduler);

  // A new step: its forward tasks become ready as soon as what they read is there.
  void BeginStep(uint64_t step, int64_t now_ns);

  // kPlugin with the task's name when `action` is not a ready task of `lane`.
  Status Check(const Action& action, Lane lane, const char* scheduler_name) const;
  void Start(uint32_t task, int64_t now_ns);
  void Finish(uint32_t task, int64_t now_ns);

  // Whether the parameters that a forward task reads are those that it needs: the second look, by
  // another path than the dependencies.
  Status CheckVersions(const Task& task) const;

  bool backward_done() const { return head_left_ == 0; }
  size_t tail_left() const { return tail_left_; }
  // The step that the newest instance of a task belongs to.
  uint64_t StepOf(const Task& task) const { return task.tail ? tail_step_ : step_; }
  Phase phase(uint32_t task) const { return phase_[task]; }
  const std::vector<Phase>& phases() const { return phase_; }
  int64_t ready_ns(uint32_t task) const { return ready_ns_[task]; }
  int64_t begin_ns(uint32_t task) const { return begin_ns_[task]; }
  // The ready task with the smallest id, or null.
  const Task* FirstReady() const;

 private:
  void MakeReady(uint32_t task, int64_t now_ns);
  void Satisfy(uint32_t task, int64_t now_ns);

  const TaskGraph& graph_;
  Scheduler& scheduler_;
  std::vector<Phase> phase_;
  std::vector<int32_t> waits_for_;  // of the next instance of a task
  std::vector<int64_t> ready_ns_, begin_ns_;
  std::vector<int32_t> writers_, writers_left_;  // by parameter: tasks that complete it
  std::vector<uint64_t> version_;                // by parameter: steps whose update is done
  size_t head_count_ = 0, tail_count_ = 0;       // tasks of a step, without the statistics
  size_t head_left_ = 0, tail_left_ = 0;
  uint64_t step_ = 0, tail_step_ = 0;
  uint64_t steps_begun_ = 0;
};

}  // namespace engine
