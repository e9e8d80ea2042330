// A comparison without any run behind it.
#pragma once

#include "bench/training/compare.h"

namespace engine::bench {

// Two blocks in which B takes `b_ms` per step where A takes 10; four steps after one of warm-up.
inline TrainResult SampleResult(double b_ms, bool with_null = false) {
  TrainResult result;
  result.request.config_name = "a <b> & \"c\".pbtxt";
  result.request.a.plugins = {"tcp", "fifo_sched"};
  result.request.b.plugins = {"tcp", "priority_sched"};
  if (with_null) result.request.null_side = Side{.plugins = {"null"}};
  result.request.blocks = 2;
  result.request.warmup = 1;
  result.request.steps = 4;
  result.machine = {.cpu = "a processor",
                    .cores = 2,
                    .kernel = "a kernel",
                    .engine = "engine 1.2.3",
                    .command_line = "engine bench train '<x>'"};
  for (const Turn& turn : MakeOrder(2, with_null)) {
    const double ms = turn.side == SideId::kA ? 10 : turn.side == SideId::kB ? b_ms : 6;
    RunResult run{.side = turn.side, .block = turn.block, .losses = {2.5, 2.25, 2, 1.75, 1.5}};
    for (const double noise : {0.999, 1.0, 1.001, 1.0}) {
      run.step_seconds.push_back(1e-3 * ms * noise);
    }
    run.bytes_per_step = 1000000;
    run.forward_seconds = 2e-3;
    result.runs.push_back(std::move(run));
  }
  return result;
}

}  // namespace engine::bench
