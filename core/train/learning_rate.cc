#include "core/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace engine::train {

double LearningRateAt(const LearningRate& rate, int64_t step, int64_t steps) {
  const int64_t warmup = rate.warmup_steps;
  if (step < warmup) return rate.base * static_cast<double>(step) / static_cast<double>(warmup);
  if (rate.schedule == LearningRate::Schedule::kConstant) return rate.base;
  const auto length = static_cast<double>(std::max<int64_t>(steps - warmup, 1));
  const double progress = std::min(1.0, static_cast<double>(step - warmup) / length);
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return rate.base * (rate.final_ratio + (1 - rate.final_ratio) * cosine);
}

}  // namespace engine::train
