// A tiny model of the executor: offers tasks, takes actions, and lets what runs end in an order
// that the caller's random numbers decide.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "tests/conformance/scheduler/step_graph.h"

namespace engine::test {

// Which tasks were started, in order, by lane.
struct Trace {
  std::vector<uint32_t> compute;
  std::vector<uint32_t> io;
  bool operator==(const Trace&) const = default;
};

class ExecutorModel {
 public:
  ExecutorModel(Scheduler& scheduler, const StepGraph& graph)
      : scheduler_(scheduler), graph_(graph) {}

  // Runs one step and returns what the scheduler did wrong, or "". With `stop_after`, gives the
  // step up with an error event after so many tasks have ended.
  std::string RunStep(uint64_t step, uint32_t timing_seed, Trace* trace,
                      size_t stop_after = SIZE_MAX);

  // Of the scheduler, in all On and Next so far.
  uint64_t allocations() const { return allocations_; }

 private:
  void Send(EventKind kind, uint32_t task = 0);
  Action Ask(Lane lane);
  void AskIo();
  void AskCompute();
  void Start(Lane lane, uint32_t task);
  void End(uint32_t task);
  std::string CheckIdle(const char* when);
  std::string Outcome() const;

  enum class State { kWaiting, kReady, kStarted, kDone };

  Scheduler& scheduler_;
  const StepGraph& graph_;
  uint64_t allocations_ = 0;
  // Of the step under way:
  uint64_t step_ = 0;
  std::mt19937 timing_;
  std::vector<State> states_;        // by task
  std::vector<uint32_t> waits_for_;  // by task, how many
  std::vector<uint32_t> running_;    // on both lanes
  bool compute_is_busy_ = false;
  size_t done_ = 0;
  Trace* trace_ = nullptr;
  std::string problem_;  // the first one
};

}  // namespace engine::test
