#include "app/config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace engine::train {
namespace {

using config::LearningRate;
using Schedule = LearningRate::Schedule;

LearningRate Rate(Schedule schedule, int64_t warmup_steps) {
  return {.base = 0.4, .schedule = schedule, .warmup_steps = warmup_steps, .final_ratio = 0.25};
}

TEST(LearningRate, ConstantStaysAtTheBase) {
  const auto rate = Rate(Schedule::kConstant, 0);
  for (const int64_t step : {1, 50, 100}) EXPECT_DOUBLE_EQ(rate(step, 100), 0.4);
}

TEST(LearningRate, WarmUpIsLinearAndEndsAtTheBase) {
  for (const auto schedule : {Schedule::kConstant, Schedule::kCosine}) {
    const auto rate = Rate(schedule, 8);
    for (int64_t step = 1; step <= 8; ++step) {
      EXPECT_DOUBLE_EQ(rate(step, 100), 0.05 * static_cast<double>(step));
    }
  }
  EXPECT_DOUBLE_EQ(Rate(Schedule::kConstant, 8)(9, 100), 0.4);
}

TEST(LearningRate, CosineFallsFromTheWarmUpToTheFinalRatio) {
  const auto rate = Rate(Schedule::kCosine, 20);
  EXPECT_DOUBLE_EQ(rate(20, 100), 0.4);
  EXPECT_DOUBLE_EQ(rate(60, 100), (0.4 + 0.1) / 2);
  EXPECT_DOUBLE_EQ(rate(100, 100), 0.1);
  const double expected = 0.1 + 0.3 * 0.5 * (1 + std::cos(std::numbers::pi * 30 / 80));
  EXPECT_NEAR(rate(50, 100), expected, 1e-15);
  for (int64_t step = 20; step < 100; ++step) {
    EXPECT_GT(rate(step, 100), rate(step + 1, 100)) << step;
  }
}

TEST(LearningRate, ARunShorterThanItsWarmUpOnlyWarmsUp) {
  const auto rate = Rate(Schedule::kCosine, 10);
  EXPECT_DOUBLE_EQ(rate(4, 4), 0.16);
  EXPECT_DOUBLE_EQ(rate(10, 10), 0.4);
}

}  // namespace
}  // namespace engine::train
