#include "reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "reduce_pool.h"

namespace engine::zmq_ps {
namespace {

template <typename T>
::zmq::message_t MessageOf(const std::vector<T>& values) {
  return {values.data(), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> Reduce(DType dtype, Reduction reduction, const std::vector<std::vector<T>>& inputs) {
  ReduceTask task;
  task.kernels = &KernelsFor(dtype, reduction);
  task.count = inputs[0].size();
  task.last = true;
  for (const auto& input : inputs) task.inputs.push_back(MessageOf(input));
  Run(task);
  std::vector<T> result(task.count);
  EXPECT_EQ(task.accumulator.size(), task.count * sizeof(T));
  std::memcpy(result.data(), task.accumulator.data(), task.count * sizeof(T));
  return result;
}

TEST(Reduce, FloatsInTheOrderOfTheInputs) {
  std::vector<std::vector<float>> inputs(3, std::vector<float>(10007));
  std::vector<float> sum(10007), max(10007), min(10007);
  for (size_t i = 0; i < sum.size(); ++i) {
    inputs[0][i] = std::ldexp(1.0f, static_cast<int>(i % 20));
    inputs[1][i] = -0.37f * static_cast<float>(i);
    inputs[2][i] = 1.0f / static_cast<float>(i + 1);
    sum[i] = inputs[0][i] + inputs[1][i] + inputs[2][i];
    max[i] = std::max({inputs[0][i], inputs[1][i], inputs[2][i]});
    min[i] = std::min({inputs[0][i], inputs[1][i], inputs[2][i]});
  }
  EXPECT_EQ(Reduce(DType::kFloat32, Reduction::kSum, inputs), sum);
  EXPECT_EQ(Reduce(DType::kFloat32, Reduction::kMax, inputs), max);
  EXPECT_EQ(Reduce(DType::kFloat32, Reduction::kMin, inputs), min);
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

// 1 + 2^-9 + 2^-9: each half is lost when the sum is rounded every time.
TEST(Reduce, SixteenBitFloatsAreRoundedOnce) {
  const uint16_t one = 0x3f80, half_ulp = 0x3b00, next = 0x3f81;  // bfloat16: 1, 2^-9, 1 + 2^-7
  EXPECT_EQ(Reduce<uint16_t>(DType::kBFloat16, Reduction::kSum,
                             {{one}, {half_ulp}, {half_ulp}, {half_ulp}, {half_ulp}}),
            std::vector<uint16_t>{next});
}

double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// All finite halves come back from float32, and halfway between neighbours goes to the even one.
TEST(Reduce, Float16IsRoundedToNearestEven) {
  const ReduceKernels& kernels = KernelsFor(DType::kFloat16, Reduction::kSum);
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float wide = 0;
    kernels.load(&wide, &half, 1);
    ASSERT_EQ(wide, HalfValue(half)) << bits;
    uint16_t back = 0;
    kernels.store(&back, &wide, 1);
    ASSERT_EQ(back, half);
    if (bits + 1 == 0x7c00) continue;
    const auto between =
        static_cast<float>((HalfValue(half) + HalfValue(static_cast<uint16_t>(bits + 1))) / 2);
    kernels.store(&back, &between, 1);
    ASSERT_EQ(back, bits % 2 == 0 ? bits : bits + 1) << bits;
  }
  const float overflow = 65520;
  uint16_t back = 0;
  kernels.store(&back, &overflow, 1);
  EXPECT_EQ(back, 0x7c00);
}

TEST(Reduce, NotANumberWinsMaxAndMin) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::kMax, Reduction::kMin}) {
    const auto result = Reduce<float>(DType::kFloat32, reduction, {{nan, 1, 2}, {1, nan, 3}});
    EXPECT_TRUE(std::isnan(result[0]));
    EXPECT_TRUE(std::isnan(result[1]));
    EXPECT_FALSE(std::isnan(result[2]));
  }
}

TEST(Reduce, BuffersNeedNoAlignment) {
  std::vector<char> accumulator(401), x(403);
  const float one = 1, two = 2;
  for (size_t i = 0; i < 100; ++i) {
    std::memcpy(accumulator.data() + 1 + 4 * i, &one, 4);
    std::memcpy(x.data() + 3 + 4 * i, &two, 4);
  }
  KernelsFor(DType::kFloat32, Reduction::kSum).fold(accumulator.data() + 1, x.data() + 3, 100);
  for (size_t i = 0; i < 100; ++i) {
    float sum = 0;
    std::memcpy(&sum, accumulator.data() + 1 + 4 * i, 4);
    EXPECT_EQ(sum, 3);
  }
}

}  // namespace
}  // namespace engine::zmq_ps
