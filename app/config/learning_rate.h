// train.learning_rate as a function of the step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace engine::config {

struct LearningRate {
  enum class Schedule { kConstant, kCosine };
  double base = 0.001;
  Schedule schedule = Schedule::kConstant;
  int64_t warmup_steps = 0;  // linear, from 0
  double final_ratio = 0.1;  // of the last step, as a share of `base`

  // The rate of step `step` (1 .. steps): linear from 0 over the warm-up, so that step
  // `warmup_steps` has the base rate; then constant, or half a cosine down to base * final_ratio at
  // the last step (Loshchilov and Hutter 2017).
  double operator()(int64_t step, int64_t steps) const {
    if (step < warmup_steps) {
      return base * static_cast<double>(step) / static_cast<double>(warmup_steps);
    }
    if (schedule == Schedule::kConstant) return base;
    const auto length = static_cast<double>(std::max<int64_t>(steps - warmup_steps, 1));
    const double progress = std::min(1.0, static_cast<double>(step - warmup_steps) / length);
    const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
    return base * (final_ratio + (1 - final_ratio) * cosine);
  }
};

}  // namespace engine::config
