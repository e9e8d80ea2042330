#include "app/config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace engine::config {
namespace {

using Unit = LearningRate::Unit;
using Curve = LearningRate::Curve;

constexpr int64_t kPerEpoch = 10;

// Warm-up over `warmup` steps, then half a cosine to a quarter at the end of the run.
LearningRate Cosine(double warmup) {
  return {.base = 0.4,
          .points = {{.factor = 0}, {.at = warmup}, {1, Unit::kRuns, 0.25, Curve::kCosine}}};
}

TEST(LearningRate, WithoutPointsItIsTheBase) {
  const LearningRate rate{.base = 0.4, .points = {}};
  for (const int64_t step : {1, 50, 100}) EXPECT_DOUBLE_EQ(rate(step, 100, kPerEpoch), 0.4);
}

TEST(LearningRate, BeforeTheFirstAndAfterTheLastPointTheirFactorsCount) {
  const LearningRate rate{.base = 2, .points = {{20, Unit::kSteps, 0.5}, {30, Unit::kSteps, 3}}};
  EXPECT_DOUBLE_EQ(rate(1, 100, kPerEpoch), 1);
  EXPECT_DOUBLE_EQ(rate(20, 100, kPerEpoch), 1);
  EXPECT_DOUBLE_EQ(rate(24, 100, kPerEpoch), 3);
  EXPECT_DOUBLE_EQ(rate(30, 100, kPerEpoch), 6);
  EXPECT_DOUBLE_EQ(rate(99, 100, kPerEpoch), 6);
}

TEST(LearningRate, WarmUpIsLinearAndEndsAtTheBase) {
  for (int64_t step = 1; step <= 8; ++step) {
    EXPECT_DOUBLE_EQ(Cosine(8)(step, 100, kPerEpoch), 0.05 * static_cast<double>(step));
  }
}

TEST(LearningRate, CosineFallsFromTheWarmUpToItsPoint) {
  const auto rate = [](int64_t step) { return Cosine(20)(step, 100, kPerEpoch); };
  EXPECT_DOUBLE_EQ(rate(20), 0.4);
  EXPECT_DOUBLE_EQ(rate(60), (0.4 + 0.1) / 2);
  EXPECT_DOUBLE_EQ(rate(100), 0.1);
  const double expected = 0.1 + 0.3 * 0.5 * (1 + std::cos(std::numbers::pi * 30 / 80));
  EXPECT_NEAR(rate(50), expected, 1e-15);
  for (int64_t step = 20; step < 100; ++step) EXPECT_GT(rate(step), rate(step + 1)) << step;
}

TEST(LearningRate, ARunShorterThanItsWarmUpOnlyWarmsUp) {
  EXPECT_DOUBLE_EQ(Cosine(10)(4, 4, kPerEpoch), 0.16);
  EXPECT_DOUBLE_EQ(Cosine(11)(10, 10, kPerEpoch), 0.4 * (10.0 / 11));
}

TEST(LearningRate, StepsAreTakenAtEpochs) {
  const LearningRate rate{
      .base = 1,
      .points = {
          {}, {3, Unit::kEpochs, 0.1, Curve::kStep}, {6, Unit::kEpochs, 0.01, Curve::kStep}}};
  for (int64_t step = 1; step <= 100; ++step) {
    EXPECT_DOUBLE_EQ(rate(step, 100, kPerEpoch), step < 30 ? 1 : step < 60 ? 0.1 : 0.01) << step;
  }
}

TEST(LearningRate, AnExponentialFallsByTheSameRatioInEachStep) {
  const LearningRate rate{.base = 8, .points = {{}, {1, Unit::kRuns, 1e-2, Curve::kExponential}}};
  for (int64_t step = 1; step < 50; ++step) {
    EXPECT_NEAR(rate(step + 1, 50, kPerEpoch) / rate(step, 50, kPerEpoch), std::pow(1e-2, 0.02),
                1e-12);
  }
  EXPECT_DOUBLE_EQ(rate(50, 50, kPerEpoch), 0.08);
}

TEST(LearningRate, WarmUpStableDecayInThreeUnits) {
  const LearningRate rate{
      .base = 1,
      .points = {
          {.factor = 0}, {.at = 5}, {8, Unit::kEpochs, 1}, {1, Unit::kRuns, 0, Curve::kLinear}}};
  EXPECT_DOUBLE_EQ(rate(1, 100, kPerEpoch), 0.2);
  for (const int64_t step : {5, 40, 80}) EXPECT_DOUBLE_EQ(rate(step, 100, kPerEpoch), 1);
  EXPECT_DOUBLE_EQ(rate(95, 100, kPerEpoch), 0.25);
  EXPECT_DOUBLE_EQ(rate(100, 100, kPerEpoch), 0);
}

}  // namespace
}  // namespace engine::config
