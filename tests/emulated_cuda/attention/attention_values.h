// Numbers in float or bfloat16, on the host and in memory of the device; problems of attention, and
// what its kernels make of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/attention.h"
#include "tests/conformance/ops/reference_attention.h"
#include "tests/emulated_cuda/device_array.h"

namespace engine::cuda_ops::test {

using Bf16 = __nv_bfloat16;
using Doubles = std::vector<double>;

inline double Value(float x) {
  return static_cast<double>(x);
}
inline double Value(Bf16 x) {
  return static_cast<double>(__bfloat162float(x));
}

template <typename T>
T Rounded(double x) {
  if constexpr (std::is_same_v<T, float>) {
    return static_cast<float>(x);
  } else {
    return __float2bfloat16_rn(static_cast<float>(x));
  }
}

template <typename T>
Doubles ToDoubles(const std::vector<T>& values) {
  Doubles doubles;
  for (T value : values) doubles.push_back(Value(value));
  return doubles;
}

// Memory of the device, with NaN in it, and behind it: what is written past the end shows.
template <typename T>
class Array {
 public:
  explicit Array(size_t size) : Array(std::vector<T>(size, Rounded<T>(NAN))) {}
  explicit Array(std::vector<T> values) : size_(values.size()), memory_(WithGuard(&values)) {}

  T* data() const { return memory_.data(); }
  std::vector<T> Read() const {
    std::vector<T> values = memory_.Read();
    for (size_t i = size_; i < values.size(); ++i) EXPECT_TRUE(std::isnan(Value(values[i])));
    values.resize(size_);
    return values;
  }

 private:
  static const std::vector<T>& WithGuard(std::vector<T>* values) {
    values->resize(values->size() + 64, Rounded<T>(NAN));
    return *values;
  }

  const size_t size_;
  const emulated_cuda::Array<T> memory_;
};

inline size_t Size(int64_t count) {
  return static_cast<size_t>(count);
}

template <typename T>
std::vector<T> RandomValues(int64_t count, double scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(Rounded<T>(normal(random)));
  return values;
}

// One problem and the results of a set of kernels.
template <typename T>
struct Problem {
  AttentionShape shape;
  std::vector<T> qkv, dy, before;  // `before`: what dqkv is added to

  explicit Problem(const AttentionShape& of) : shape(of) {
    const int64_t count = int64_t{shape.batch} * shape.length * shape.width();
    qkv = RandomValues<T>(3 * count, 1.0, 1);
    dy = RandomValues<T>(count, 1.0, 2);
    before = RandomValues<T>(3 * count, 1.0, 3);
  }
};

template <typename T>
struct Results {
  std::vector<T> y, dqkv;
  std::vector<float> log_sums;
};

enum class Kernels { kFlash, kPlain };

template <typename T>
Results<T> Compute(const Problem<T>& problem, Kernels kernels, bool sum = false) {
  const AttentionShape& shape = problem.shape;
  const auto rows = Size(int64_t{shape.batch} * shape.heads * shape.length);
  const Array<T> qkv(problem.qkv), dy(problem.dy), y(problem.dy.size());
  const Array<T> untouched(problem.qkv.size()), added(problem.before);
  const Array<T>& dqkv = sum ? added : untouched;
  const Array<float> log_sums(rows), delta(rows);
  const AttentionBackwardCall<T> call = {
      qkv.data(), y.data(), log_sums.data(), dy.data(), dqkv.data(), delta.data(), sum};
  if (kernels == Kernels::kPlain) {
    EXPECT_EQ(LaunchPlainAttentionForward(shape, qkv.data(), y.data(), log_sums.data(), nullptr),
              cudaSuccess);
    EXPECT_EQ(LaunchPlainAttentionBackward(shape, call, nullptr), cudaSuccess);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    EXPECT_EQ(LaunchFlashForward(shape, qkv.data(), y.data(), log_sums.data(), nullptr),
              cudaSuccess);
    EXPECT_EQ(LaunchFlashBackward(shape, call, nullptr), cudaSuccess);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return {y.Read(), dqkv.Read(), log_sums.Read()};
}

// The root of the mean square of the difference, in that of what is wanted.
inline double Difference(const Doubles& got, const Doubles& want) {
  EXPECT_EQ(got.size(), want.size());
  double squares = 0, errors = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += want[i] * want[i];
    errors += (got[i] - want[i]) * (got[i] - want[i]);
  }
  return errors == 0 ? 0 : std::sqrt(errors / squares);
}

}  // namespace engine::cuda_ops::test
