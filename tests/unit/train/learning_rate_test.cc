#include "core/train/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace engine {
namespace {

config::LearningRate Rate(config::LearningRate::Schedule schedule, int64_t warmup_steps) {
  config::LearningRate rate;
  rate.set_base(0.4);
  rate.set_schedule(schedule);
  rate.set_warmup_steps(warmup_steps);
  rate.set_final_ratio(0.25);
  return rate;
}

TEST(LearningRate, ConstantStaysAtTheBase) {
  const auto rate = Rate(config::LearningRate::CONSTANT, 0);
  for (const int64_t step : {1, 50, 100}) EXPECT_DOUBLE_EQ(LearningRateAt(rate, step, 100), 0.4);
}

TEST(LearningRate, WarmUpIsLinearAndEndsAtTheBase) {
  for (const auto schedule : {config::LearningRate::CONSTANT, config::LearningRate::COSINE}) {
    const auto rate = Rate(schedule, 8);
    for (int64_t step = 1; step <= 8; ++step) {
      EXPECT_DOUBLE_EQ(LearningRateAt(rate, step, 100), 0.05 * static_cast<double>(step));
    }
  }
  EXPECT_DOUBLE_EQ(LearningRateAt(Rate(config::LearningRate::CONSTANT, 8), 9, 100), 0.4);
}

TEST(LearningRate, CosineFallsFromTheWarmUpToTheFinalRatio) {
  const auto rate = Rate(config::LearningRate::COSINE, 20);
  EXPECT_DOUBLE_EQ(LearningRateAt(rate, 20, 100), 0.4);
  EXPECT_DOUBLE_EQ(LearningRateAt(rate, 60, 100), (0.4 + 0.1) / 2);
  EXPECT_DOUBLE_EQ(LearningRateAt(rate, 100, 100), 0.1);
  const double expected = 0.1 + 0.3 * 0.5 * (1 + std::cos(std::numbers::pi * 30 / 80));
  EXPECT_NEAR(LearningRateAt(rate, 50, 100), expected, 1e-15);
  for (int64_t step = 20; step < 100; ++step) {
    EXPECT_GT(LearningRateAt(rate, step, 100), LearningRateAt(rate, step + 1, 100)) << step;
  }
}

TEST(LearningRate, ARunShorterThanItsWarmUpOnlyWarmsUp) {
  const auto rate = Rate(config::LearningRate::COSINE, 10);
  EXPECT_DOUBLE_EQ(LearningRateAt(rate, 4, 4), 0.16);
  EXPECT_DOUBLE_EQ(LearningRateAt(rate, 10, 10), 0.4);
}

}  // namespace
}  // namespace engine
