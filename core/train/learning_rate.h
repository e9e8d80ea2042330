// Learning rate by step.
#pragma once

#include <cstdint>

#include "core/train/run_config.h"

namespace engine::train {

// The rate of step `step` (1 .. steps): linear from 0 over the warm-up, so that step `warmup_steps`
// has the base rate; then constant, or half a cosine down to base * final_ratio at the last step
// (Loshchilov and Hutter 2017).
double LearningRateAt(const LearningRate& rate, int64_t step, int64_t steps);

}  // namespace engine::train
