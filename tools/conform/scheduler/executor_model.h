// Drives the engine's own step loop, with tasks that end in an order that the caller's random
// numbers decide, and keeps what the scheduler starts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/exec/step_loop.h"
#include "engine/scheduler.h"
#include "tools/conform/scheduler/step_graph.h"

namespace engine::conform {

struct Started {
  uint32_t step = 0;  // of the run, from 0
  uint32_t task = 0;
  bool backward_ended = false;  // of that step
  bool operator==(const Started& other) const { return step == other.step && task == other.task; }
};

// Which tasks were started, in order: by lane, and together.
struct Trace {
  std::vector<Started> compute;
  std::vector<Started> io;
  std::vector<Started> all;
  bool operator==(const Trace&) const = default;

  static std::vector<uint32_t> OfStep(const std::vector<Started>& lane, uint32_t step);
};

struct ExecutionOptions {
  uint32_t steps = 4;
  uint32_t timing_seed = 1;      // when tasks end, when lanes are asked, when batches come
  uint32_t flush_seed = 1;       // after which steps there is a flush: the same on all ranks
  bool flush_always = false;     // after every step, and each has the same timing
  size_t stop_after = SIZE_MAX;  // gives the run up with an error when so many tasks are done
  const std::vector<Started>* tickets = nullptr;  // the transfers of rank 0, when this rank follows
  std::function<bool(uint32_t task, uint32_t step)> may_end;  // of what runs; null: all may
};

class ExecutorModel final : private exec::StepLoop::Calls {
 public:
  ExecutorModel(Scheduler& scheduler, const StepGraph& graph)
      : scheduler_(scheduler), graph_(graph.graph()) {}

  // Runs steps, the last of which ends with a flush, and returns what the scheduler did wrong, or
  // "". Every run is a new one for the executor but not for the scheduler.
  std::string Run(const ExecutionOptions& options, Trace* trace);

  // The same bit by bit, for ranks that run side by side. Begin is followed by turns until Outcome
  // is asked.
  void Begin(const ExecutionOptions& options, Trace* trace);
  // Lets one thing happen. False: nothing can, as long as nothing happens elsewhere.
  bool Turn();
  std::string Outcome() const;

  bool WasStarted(uint32_t task, uint32_t step) const { return started_[task] > step; }
  bool WasDone(uint32_t task, uint32_t step) const { return done_[task] > step; }

  // Of the scheduler, in all On and Next so far.
  uint64_t allocations() const { return scheduler_.allocations; }

 private:
  // The scheduler under test, and what there is to see of it.
  struct Watched final : SchedulerBase {
    explicit Watched(Scheduler& watched) : scheduler(watched) {}
    SchedulerTraits traits() const noexcept override { return scheduler.traits(); }
    Status Plan(const ModelInfo&, PlanSink&) noexcept override { return {}; }
    Status Begin(Array<const TaskInfo>) noexcept override { return {}; }
    void On(const SchedulerEvent& event) noexcept override;
    Action Next(Lane lane) noexcept override;

    Scheduler& scheduler;
    uint64_t allocations = 0;
    bool backward_ended = false;  // of the latest step
  };

  // Whatever the loop calls gives it up for this turn.
  Status Run(const exec::Task& task) override;
  Status Wait() override;

  void Start(uint32_t task);
  void StartTransfers();
  void FollowTickets();
  bool Compute();
  void BeginStep();
  size_t FindEndable();
  std::string GiveUp();
  bool AtEnd() const {
    return flushing_ && steps_begun_ == options_.steps && loop_->TailDone() && running_.empty();
  }

  Watched scheduler_;
  const exec::TaskGraph& graph_;
  // Of the run under way:
  std::optional<exec::StepLoop> loop_;
  ExecutionOptions options_;
  std::mt19937 timing_, flushes_;
  std::vector<uint32_t> started_, done_;  // by task: how often
  std::vector<uint32_t> running_;         // on both lanes
  bool compute_is_busy_ = false;
  uint32_t steps_begun_ = 0;
  bool flushing_ = false;
  size_t done_count_ = 0;
  size_t next_ticket_ = 0, known_tickets_ = 0;
  Trace* trace_ = nullptr;
  std::string problem_;  // the first one
};

}  // namespace engine::conform
