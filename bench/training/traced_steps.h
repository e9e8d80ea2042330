// Times of steps from the trace of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/status.h"
#include "tools/trace/trace_format.h"

namespace engine::bench {

struct TracedSteps {
  std::vector<double> step_seconds;  // of each step that of its slowest rank
  // Medians over steps; of several ranks their mean.
  double forward_seconds = 0, backward_seconds = 0;
  double waited_seconds = 0;   // the compute lane had nothing to run
  int64_t bytes_per_step = 0;  // of all transfers of one rank but pulls
};

// The last `steps` steps of `trace`. kBadData when a rank lacks one of them.
Result<TracedSteps> MeasureSteps(const trace::Trace& trace, int64_t steps);

}  // namespace engine::bench
