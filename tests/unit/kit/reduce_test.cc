#include "kit/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace engine::kit {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Through the accumulator, as three ranks and more do it.
template <typename T>
std::vector<T> Reduce(DType dtype, Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  const ReduceKernels& kernels = kReduceKernels.For(dtype, reduction);
  const size_t count = inputs[0].size();
  std::vector<char> accumulator(count * kernels.accumulator_bytes);
  std::vector<T> result(count);
  kernels.load(accumulator.data(), inputs[0].data(), count);
  for (size_t i = 1; i < inputs.size(); ++i) {
    kernels.fold(accumulator.data(), inputs[i].data(), count);
  }
  kernels.store(result.data(), accumulator.data(), count);
  return result;
}

TEST(Reduce, IntegersWrapAround) {
  const int32_t large = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(Reduce<int32_t>(DType::kInt32, Reduction::kSum, {{large, 5}, {1, -7}}),
            (std::vector<int32_t>{std::numeric_limits<int32_t>::min(), -2}));
  EXPECT_EQ(Reduce<uint8_t>(DType::kUint8, Reduction::kSum, {{250, 1}, {10, 2}}),
            (std::vector<uint8_t>{4, 3}));
  EXPECT_EQ(Reduce<uint8_t>(DType::kUint8, Reduction::kMax, {{250, 1}, {10, 2}}),
            (std::vector<uint8_t>{250, 2}));
}

TEST(Reduce, NotANumberWinsMaxAndMin) {
  for (const Reduction reduction : {Reduction::kMax, Reduction::kMin}) {
    const auto result = Reduce<float>(DType::kFloat32, reduction, {{kNaN, 1, 2}, {1, kNaN, 3}});
    EXPECT_TRUE(std::isnan(result[0]));
    EXPECT_TRUE(std::isnan(result[1]));
    EXPECT_EQ(result[2], reduction == Reduction::kMax ? 3 : 2);
  }
}

// The result may take the place of either operand.
TEST(Reduce, TwoAreCombinedInPlaceAndApart) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> a(1001), b(1001), apart(1001);
  for (float& x : a) x = value(random);
  for (float& x : b) x = value(random);
  const ReduceKernels& sum = kReduceKernels.For(DType::kFloat32, Reduction::kSum);
  sum.combine(apart.data(), a.data(), b.data(), a.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(apart[i], a[i] + b[i]);
  std::vector<float> left = a, right = b;
  sum.combine(left.data(), left.data(), b.data(), a.size());
  sum.combine(right.data(), a.data(), right.data(), a.size());
  EXPECT_EQ(left, apart);
  EXPECT_EQ(right, apart);
  left = a, right = b;
  sum.combine_twice(left.data(), right.data(), left.data(), right.data(), a.size());
  EXPECT_EQ(left, apart);
  EXPECT_EQ(right, apart);
}

TEST(Reduce, BuffersNeedNoAlignment) {
  std::vector<char> accumulator(401), x(403);
  const float one = 1, two = 2;
  for (size_t i = 0; i < 100; ++i) {
    std::memcpy(accumulator.data() + 1 + 4 * i, &one, 4);
    std::memcpy(x.data() + 3 + 4 * i, &two, 4);
  }
  kReduceKernels.For(DType::kFloat32, Reduction::kSum)
      .fold(accumulator.data() + 1, x.data() + 3, 100);
  for (size_t i = 0; i < 100; ++i) {
    float sum = 0;
    std::memcpy(&sum, accumulator.data() + 1 + 4 * i, 4);
    EXPECT_EQ(sum, 3);
  }
}

// 256 + 1 + 1 + 1 is 256 in bfloat16 if each sum is rounded, but 260 if only the last is.
TEST(Reduce, SixteenBitSumsAreRoundedOnce) {
  const uint16_t large = ToBFloat16(256), one = ToBFloat16(1);
  const auto sum =
      Reduce<uint16_t>(DType::kBFloat16, Reduction::kSum, {{large}, {one}, {one}, {one}});
  EXPECT_EQ(FromBFloat16(sum[0]), 260.0f);
}

}  // namespace
}  // namespace engine::kit
