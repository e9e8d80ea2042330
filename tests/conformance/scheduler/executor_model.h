// A small model of the executor: offers tasks of overlapping steps, takes actions, and lets what
// runs end in an order that the caller's random numbers decide.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "tests/conformance/scheduler/step_graph.h"

namespace engine::test {

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

struct RunOptions {
  uint32_t steps = 4;
  uint32_t timing_seed = 1;      // when transfers end, when lanes are asked, when batches come
  uint32_t flush_seed = 1;       // after which steps there is a flush: the same on all ranks
  bool flush_always = false;     // after every step, and each has the same timing
  size_t stop_after = SIZE_MAX;  // gives the run up with an error when so many tasks are done
  const std::vector<Started>* tickets = nullptr;  // the transfers of rank 0, when this rank follows
  std::function<bool(uint32_t task, uint32_t step)> may_end;  // of what runs; null: all may
};

class ExecutorModel {
 public:
  ExecutorModel(Scheduler& scheduler, const StepGraph& graph)
      : scheduler_(scheduler), graph_(graph) {}

  // Runs steps, the last of which ends with a flush, and returns what the scheduler did wrong, or
  // "". Every run is a new one for the executor but not for the scheduler.
  std::string Run(const RunOptions& options, Trace* trace);

  // The same bit by bit, for ranks that run side by side. Begin is followed by turns until Outcome
  // is asked.
  void Begin(const RunOptions& options, Trace* trace);
  // Lets one thing happen. False: nothing can, as long as nothing happens elsewhere.
  bool Turn();
  std::string Outcome() const;

  bool WasStarted(uint32_t task, uint32_t step) const;
  bool WasDone(uint32_t task, uint32_t step) const { return progress_[task].steps_done > step; }

  // Of the scheduler, in all On and Next so far.
  uint64_t allocations() const { return allocations_; }

 private:
  enum class State { kWaiting, kReady, kStarted };
  struct Progress {
    State state = State::kWaiting;
    uint32_t steps_done = 0;  // so the instance at hand is that of step `steps_done`
  };

  void Send(EventKind kind, uint32_t task = 0);
  Action Ask(Lane lane);
  bool Asks(Lane lane) const { return lane == Lane::kCompute || options_.tickets == nullptr; }
  void AskIo();
  void FollowTickets();
  void AskCompute();
  void Start(Lane lane, uint32_t task);
  bool CanBecomeReady(uint32_t task) const;
  void OfferReady(std::vector<uint32_t> candidates);
  void End(uint32_t task);
  void EndHead();
  bool NextFromOutside();
  void BeginStep();
  bool AllDone(uint32_t steps) const { return done_ == size_t{steps} * progress_.size(); }
  size_t FindEndable();
  std::string GiveUp();

  Scheduler& scheduler_;
  const StepGraph& graph_;
  uint64_t allocations_ = 0;
  // Of the run under way:
  RunOptions options_;
  std::mt19937 timing_, flushes_;
  std::vector<Progress> progress_;  // by task
  std::vector<uint32_t> running_;   // on both lanes
  bool compute_is_busy_ = false;
  uint32_t steps_begun_ = 0;
  size_t head_left_ = 0;         // tasks of the latest step before kBackwardEnd
  bool backward_ended_ = false;  // of the latest step
  bool flushing_ = false;
  size_t done_ = 0;  // tasks
  size_t next_ticket_ = 0, known_tickets_ = 0;
  Trace* trace_ = nullptr;
  std::string problem_;  // the first one
};

}  // namespace engine::test
