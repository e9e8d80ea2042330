#include "bench/statistics/ratio.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/support/matchers.h"

namespace engine::bench {
namespace {

constexpr uint64_t kSeed = 20240229;

// Runs of a machine on which a run as a whole is off by `run_noise`, a step by `step_noise`, and
// everything slows down by `drift` from one run to the next.
class Simulation {
 public:
  Simulation(double speed_of_b, double run_noise, double step_noise, double drift)
      : speed_of_b_(speed_of_b), run_noise_(run_noise), step_noise_(step_noise), drift_(drift) {}

  std::vector<Pair> Pairs(int blocks) {
    std::vector<Pair> pairs;
    runs_ = 0;
    for (int block = 0; block < blocks; ++block) {
      Pair first, second;
      first.a = Run(1);
      first.b = Run(1 / speed_of_b_);
      second.b = Run(1 / speed_of_b_);
      second.a = Run(1);
      pairs.push_back(std::move(first));
      pairs.push_back(std::move(second));
    }
    return pairs;
  }

 private:
  std::vector<double> Run(double seconds) {
    std::normal_distribution<double> normal;
    const double of_run = seconds * std::exp(run_noise_ * normal(random_)) * (1 + drift_ * runs_++);
    std::vector<double> steps;
    for (int i = 0; i < 30; ++i) steps.push_back(of_run * std::exp(step_noise_ * normal(random_)));
    return steps;
  }

  const double speed_of_b_, run_noise_, step_noise_, drift_;
  std::mt19937_64 random_{kSeed};
  int runs_ = 0;
};

// The share of `kTrials` comparisons whose interval holds the true ratio.
double Coverage(double speed_of_b, double run_noise, double drift, int blocks) {
  constexpr int kTrials = 300;
  Simulation simulation(speed_of_b, run_noise, 0.05, drift);
  int covered = 0;
  for (int i = 0; i < kTrials; ++i) {
    const Ratio ratio = EstimateRatio(simulation.Pairs(blocks), {.resamples = 300, .seed = kSeed});
    covered += ratio.low <= speed_of_b && speed_of_b <= ratio.high;
  }
  return static_cast<double>(covered) / kTrials;
}

// 300 trials at 95 % have a standard deviation of 1.3 %.
TEST(EstimateRatio, TheIntervalCoversTheTruthAsOftenAsItSays) {
  EXPECT_GE(Coverage(1.0, 0.03, 0, 3), 0.92);
  EXPECT_GE(Coverage(1.3, 0.03, 0, 3), 0.92);
  EXPECT_GE(Coverage(1.3, 0.03, 0, 2), 0.92);
  EXPECT_GE(Coverage(0.8, 0.1, 0, 5), 0.92);
}

TEST(EstimateRatio, ASteadyDriftDoesNotFavourASide) {
  EXPECT_GE(Coverage(1.0, 0.005, 0.02, 4), 0.92);
}

TEST(EstimateRatio, TheIntervalIsNotWiderThanItMustBe) {
  Simulation simulation(1.3, 0.01, 0.05, 0);
  int separated = 0;
  for (int i = 0; i < 50; ++i) {
    separated +=
        Judge(EstimateRatio(simulation.Pairs(3), {.resamples = 300})) == Conclusion::kFaster;
  }
  EXPECT_EQ(separated, 50);
}

TEST(EstimateRatio, IsExactWithoutNoise) {
  const Ratio ratio = EstimateRatio({{{4, 4, 4}, {2, 2, 2}}, {{4, 4}, {2, 2}}, {{2}, {1}}}, {});
  EXPECT_DOUBLE_EQ(ratio.estimate, 2);
  EXPECT_NEAR(ratio.low, 2, 1e-6);
  EXPECT_NEAR(ratio.high, 2, 1e-6);
  EXPECT_THAT(ratio.by_pair, ::testing::ElementsAre(2, 2, 2));
}

TEST(EstimateRatio, IsTheSameForTheSameSeed) {
  const std::vector<Pair> pairs = Simulation(1.1, 0.03, 0.05, 0).Pairs(3);
  const Ratio one = EstimateRatio(pairs, {.seed = 7}), same = EstimateRatio(pairs, {.seed = 7}),
              other = EstimateRatio(pairs, {.seed = 8});
  EXPECT_EQ(one.low, same.low);
  EXPECT_EQ(one.high, same.high);
  EXPECT_NE(one.low, other.low);
  EXPECT_NEAR(one.low, other.low, 0.01);
}

TEST(EstimateRatio, TwoPairsSayNothing) {
  const Ratio ratio = EstimateRatio({{{4, 4, 4}, {2, 2, 2}}, {{4}, {2}}}, {});
  EXPECT_DOUBLE_EQ(ratio.estimate, 2);
  EXPECT_EQ(Judge(ratio), Conclusion::kNotSeparable);
  EXPECT_EQ(ConclusionText(ratio), "not separable: no interval from 2 pairs, take more blocks");
}

TEST(ConclusionText, SaysWhichIsFaster) {
  EXPECT_EQ(ConclusionText({.estimate = 1.27, .low = 1.24, .high = 1.30}),
            "B is 1.27x faster than A (95 % interval 1.24 to 1.30)");
  EXPECT_EQ(ConclusionText({.estimate = 0.8, .low = 0.75, .high = 0.85}),
            "B is 1.25x slower than A (95 % interval 1.18 to 1.33)");
  EXPECT_EQ(ConclusionText({.estimate = 1.004, .low = 1.001, .high = 1.007}),
            "B is 1.004x faster than A (95 % interval 1.001 to 1.007)");
  EXPECT_EQ(ConclusionText({.estimate = 1.004, .low = 0.98, .high = 1.03}),
            "not separable: the speed of B is 0.980 to 1.030 times that of A (95 % interval)");
  EXPECT_THAT(ConclusionText({.estimate = 1, .low = 1, .high = 1}), HasSubstr("not separable"));
}

}  // namespace
}  // namespace engine::bench
