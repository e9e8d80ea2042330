// Rules that kernels share with the host; their functions of a number are judged by OpNumerics.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/dropout.h"
#include "kernels/loss.h"

namespace engine::cuda_ops {
namespace {

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
