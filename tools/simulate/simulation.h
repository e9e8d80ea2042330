// Training steps in simulated time: the loop of tasks that the executor uses and the scheduler's own
// library, over a network that is a formula. No thread, clock or socket, so the same arguments
// give the same result.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/exec/task_graph.h"
#include "engine/scheduler.h"
#include "engine/status.h"
#include "tools/simulate/network.h"

namespace engine::simulate {

struct SimulationOptions {
  int64_t steps = 20;
  int32_t ranks = 1;
  int64_t task_overhead_ns = 0;  // from the end of a compute task until the next one may begin
  int64_t step_overhead_ns = 0;  // between steps: the next batch, metrics
  std::string scheduler_name;    // for messages
};

struct SimulationResult {
  std::vector<int64_t> step_ns;    // from the begin of each step to that of the next, or to the end
                                   // of the flush
  std::vector<int64_t> waited_ns;  // of each, the compute lane had nothing to run

  // Means of the steps in the middle: the first ones are not settled yet, the last is shorter
  // (nothing comes after its backward pass) or longer (the flush).
  double MeanStepNs() const;
  double MeanWaitedNs() const;
};

// Runs `options.steps` steps and a flush. `compute_ns`: by task; of transfers ignored.
// Calls scheduler.Begin. kTimeout when the scheduler holds
// what is ready although nothing is under way, kPlugin when it asks for what is not ready; both
// name the task.
Result<SimulationResult> Simulate(const exec::TaskGraph& graph, std::span<const int64_t> compute_ns,
                                  const NetworkModel& model, Scheduler& scheduler,
                                  const SimulationOptions& options);

}  // namespace engine::simulate
