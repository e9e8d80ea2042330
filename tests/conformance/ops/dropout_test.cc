// The random masks of dropout look random. That they are those of the formula, in forward and
// backward, is in ops_conformance_test.cc; for any number of ranks, in the conformance kit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

using Mask = std::vector<float>;  // 1 or 0

class Dropout : public ::testing::TestWithParam<std::string> {
 protected:
  // x of ones, so that y tells what is kept, or of `value`.
  RunResult Run(const Shape& x, const std::string& rate, const RunOptions& options = {},
                double value = 1) const {
    const OpSample sample = {"dropout", {{"rate", rate}}, {{x, DType::kFloat32, 1}}};
    Fed fed(GetParam(), sample);
    std::ranges::fill(fed.problem.inputs[0].values, value);
    return fed.Run(options);
  }

  Mask MaskOf(const Shape& x, const std::string& rate, const RandomKey& key) const {
    Mask mask = Run(x, rate, {.random = key}).outputs[0];
    const auto scale = static_cast<float>(1.0 / (1.0 - std::strtod(rate.c_str(), nullptr)));
    for (float& value : mask) {
      EXPECT_TRUE(value == 0.0f || value == scale);
      value = value == 0.0f ? 0.0f : 1.0f;
    }
    return mask;
  }
};

// How many standard errors the correlation of two masks of probability `keep` is from 0.
double Correlation(const Mask& a, const Mask& b, size_t shift, double keep) {
  double sum = 0;
  for (size_t i = 0; i + shift < a.size(); ++i) sum += (a[i] - keep) * (b[i + shift] - keep);
  return sum / (keep * (1 - keep) * std::sqrt(static_cast<double>(a.size() - shift)));
}

// Numbers do not change from run to run, so a bound on a random quantity is passed or not for good.
constexpr double kSigmas = 4.5;
const Shape kMany{200, 25, 40};

TEST_P(Dropout, KeepsTheShareThatItSays) {
  for (const char* rate : {"0.01", "0.1", "0.25", "0.5", "0.9", "0.999"}) {
    const double keep = 1 - std::strtod(rate, nullptr);
    const Mask mask = MaskOf(kMany, rate, {});
    const double error = std::sqrt(keep * (1 - keep) / static_cast<double>(mask.size()));
    EXPECT_NEAR(std::accumulate(mask.begin(), mask.end(), 0.0) / double(mask.size()), keep,
                kSigmas * error)
        << rate;
  }
}

TEST_P(Dropout, PositionsAreIndependent) {
  for (const char* rate : {"0.1", "0.5"}) {
    const double keep = 1 - std::strtod(rate, nullptr);
    const Mask mask = MaskOf(kMany, rate, {});
    for (size_t shift :
         {1u, 2u, 3u, 4u, 7u, 8u, 16u, 32u, 40u, 64u, 255u, 256u, 257u, 1000u, 4096u}) {
      EXPECT_LT(std::abs(Correlation(mask, mask, shift, keep)), kSigmas) << rate << ", " << shift;
    }
  }
}

TEST_P(Dropout, SeedsStepsAndNodesAreIndependent) {
  const double keep = 0.7;
  const RandomKey key{.seed = 0, .step = 1, .node = 0, .first_sample = 0};
  const std::vector<RandomKey> others = {
      {1, 1, 0, 0}, {0, 2, 0, 0}, {0, 1, 1, 0}, {0, 0, 1, 0},
      {1, 0, 0, 0}, {2, 1, 0, 0}, {0, 3, 0, 0}, {uint64_t{1} << 63, 1, 0, 0}};
  const Mask mask = MaskOf(kMany, "0.3", key);
  for (const RandomKey& other : others) {
    const Mask second = MaskOf(kMany, "0.3", other);
    for (size_t shift : {0u, 1u, 2u, 1000u}) {
      EXPECT_LT(std::abs(Correlation(mask, second, shift, keep)), kSigmas)
          << other.seed << " " << other.step << " " << other.node << " shift " << shift;
    }
  }
}

// Of runs of 8 neighbours, each of the 256 patterns is as frequent as it should be.
TEST_P(Dropout, PatternsOfNeighboursAreAllThere) {
  const Mask mask = MaskOf(kMany, "0.5", {});
  std::vector<double> counts(256, 0.0);
  for (size_t i = 0; i + 8 <= mask.size(); i += 8) {
    size_t pattern = 0;
    for (size_t j = 0; j < 8; ++j) pattern = 2 * pattern + (mask[i + j] != 0.0f ? 1 : 0);
    ++counts[pattern];
  }
  const double expected = static_cast<double>(mask.size()) / 8 / 256;
  double chi_square = 0;
  for (double count : counts) chi_square += (count - expected) * (count - expected) / expected;
  // Mean 255, standard deviation sqrt(2 * 255).
  EXPECT_NEAR(chi_square, 255, kSigmas * std::sqrt(510.0));
}

TEST_P(Dropout, PositionsBeyondFourBillionAreOthers) {
  const Shape x{2, 1001};
  const RandomKey far{.first_sample = uint64_t{1} << 40};
  const Mask mask = MaskOf(x, "0.5", far);
  EXPECT_NE(mask, MaskOf(x, "0.5", {.first_sample = 0}));
  const Mask next = MaskOf(Shape{1, 1001}, "0.5", {.first_sample = far.first_sample + 1});
  EXPECT_EQ(next, Mask(mask.begin() + 1001, mask.end()));
}

TEST_P(Dropout, EvaluationChangesNothing) {
  for (const char* rate : {"0", "0.5"}) {
    for (const bool in_place : {false, true}) {
      const RunResult result = Run(Shape{7, 33}, rate, {.in_place = in_place, .training = false});
      EXPECT_EQ(result.outputs[0], std::vector<float>(size_t{7} * 33, 1.0f));
    }
  }
}

TEST_P(Dropout, WhatIsDroppedIsZeroWhateverItWas) {
  const std::vector<float> y = Run(Shape{64}, "0.5", {}, NAN).outputs[0];
  const auto zeros = std::ranges::count(y, 0.0f);
  EXPECT_GT(zeros, 0);
  EXPECT_EQ(zeros + std::ranges::count_if(y, [](float value) { return std::isnan(value); }), 64);
}

INSTANTIATE_TEST_SUITE_P(, Dropout, ::testing::ValuesIn(PluginPaths({"cpu_ops"})), kNameOfLibrary);

}  // namespace
}  // namespace engine::test
