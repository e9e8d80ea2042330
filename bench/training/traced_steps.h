// Times of steps from the trace of a run.
#pragma once

#include <cstdint>

#include "bench/training/result.h"
#include "engine/status.h"
#include "tools/trace/trace_format.h"

namespace engine::bench {

// Adds to `run` what its `trace` says of the last `steps` steps: of several ranks the mean of their
// medians. kBadData when a rank lacks one of them.
Status MeasureSteps(const trace::Trace& trace, int64_t steps, RunResult* run);

}  // namespace engine::bench
