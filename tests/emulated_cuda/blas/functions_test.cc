// The arithmetic that kernels share with the host, against double precision.
#include "kernels/functions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "kernels/dropout.h"
#include "kernels/loss.h"

namespace engine::cuda_ops {
namespace {

std::vector<float> Arguments() {
  std::vector<float> x = {0, 100, -100, 1e4, -1e4};
  for (double magnitude = 1e-30; magnitude < 50; magnitude *= 1.03) {
    x.push_back(static_cast<float>(magnitude));
    x.push_back(static_cast<float>(-magnitude));
  }
  return x;
}

double GeluArgument(double x) {
  return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
}

TEST(CudaFunctions, GeluIsAccurateFromTinyToHuge) {
  for (const float argument : Arguments()) {
    const double x = argument, t = std::tanh(GeluArgument(x));
    const double want = 0.5 * x * (1 + t);
    const double slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / std::numbers::pi) *
                                             (1 + 3 * 0.044715 * x * x);
    EXPECT_NEAR(GeluFunction::Value(argument), want,
                4e-7 * std::min(std::abs(x), 1.0) + 4e-7 * std::abs(want))
        << x;
    EXPECT_NEAR(GeluFunction::Gradient(argument, 1), slope, 2e-6) << x;
  }
}

TEST(CudaFunctions, TanhAndReluKeepTheirSigns) {
  for (const float x : Arguments()) {
    const double y = std::tanh(static_cast<double>(x));
    EXPECT_NEAR(TanhFunction::Value(x), y, 4e-7 * std::abs(y)) << x;
    EXPECT_EQ(ReluFunction::Value(x), x > 0 ? x : 0);
    EXPECT_EQ(ReluFunction::Gradient(ReluFunction::Value(x), 3), x > 0 ? 3 : 0);
  }
  EXPECT_TRUE(std::isnan(ReluFunction::Value(NAN)));
}

TEST(CudaFunctions, ExponentialSumsNeitherOverflowNorForget) {
  std::mt19937 random(3);
  for (const double range : {1.0, 100.0, 1e4}) {
    std::vector<float> x(200);
    for (float& value : x) {
      value = static_cast<float>((random() / 4294967296.0 * 2 - 1) * range);
    }
    ExponentialSum sum;
    for (const float value : x) sum.Add(value);
    double largest = -INFINITY, want = 0;
    for (const double value : x) largest = std::max(largest, value);
    for (const double value : x) want += std::exp(value - largest);
    EXPECT_EQ(sum.largest, static_cast<float>(largest));
    EXPECT_NEAR(sum.factor, want, 1e-5 * want);
  }
  ExponentialSum sum;
  for (const float value : {-INFINITY, -INFINITY, 2.0f, -INFINITY}) sum.Add(value);
  EXPECT_EQ(sum.largest, 2);
  EXPECT_EQ(sum.factor, 1);
  sum.Add(NAN);
  EXPECT_TRUE(std::isnan(sum.factor));
}

TEST(CudaFunctions, TheFirstOfTheLargestIsThePrediction) {
  const std::vector<float> x = {1, 3, 2, 3};
  const auto is_prediction = [&](int64_t target) {
    bool beaten = false;
    for (size_t i = 0; i < x.size(); ++i) {
      beaten |= Beats(x[i], static_cast<int64_t>(i), x[static_cast<size_t>(target)], target);
    }
    return !beaten;
  };
  EXPECT_FALSE(is_prediction(0));
  EXPECT_TRUE(is_prediction(1));
  EXPECT_FALSE(is_prediction(2));
  EXPECT_FALSE(is_prediction(3));
}

// The published first outputs of SplitMix64 with seed 1234567.
TEST(CudaFunctions, MixIsSplitMix64) {
  constexpr uint64_t kIncrement = 0x9e3779b97f4a7c15u;
  const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u};
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(Mix(1234567 + i * kIncrement), want[i]);
}

}  // namespace
}  // namespace engine::cuda_ops
