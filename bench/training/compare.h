// The whole comparison: rehearsal, runs in their order, conclusion.
#pragma once

#include <functional>
#include <string>

#include "bench/training/engine_run.h"
#include "bench/training/result.h"

namespace engine::bench {

// Takes one line about the run that has just ended.
using ProgressSink = std::function<void(const std::string& line)>;

// Runs each side once for the steps of the warm-up alone, then all sides in turns. kInterrupted on
// SIGINT and SIGTERM; the error of a run that fails; nothing is left running in any case.
// `request` has been checked: ranges, and the configuration of each side. Where a launcher has started the
// ranks it is collective, and the result of rank 0 alone has runs and a conclusion.
Result<TrainResult> CompareTraining(const TrainRequest& request, const Program& program,
                                    const Machine& machine, const ProgressSink& progress);

// Everything of `result` that follows from its runs: summaries, conditions, ratio and conclusion.
void Conclude(TrainResult* result);

}  // namespace engine::bench
