// Numbers in float or bfloat16, on the host and in memory of the emulated device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "tests/emulated_cuda/attention/reference_attention.h"

namespace engine::cuda_ops::test {

using Bf16 = __nv_bfloat16;

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

// Memory of the emulated device, with NaN in it, and behind it: what is written past the end shows.
template <typename T>
class Array {
 public:
  explicit Array(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), Bytes()), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xff, Bytes()), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // other streams do not wait for it
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~Array() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(size_ + kGuard);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, Bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = size_; i < values.size(); ++i) EXPECT_TRUE(std::isnan(Value(values[i])));
    values.resize(size_);
    return values;
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t Bytes() const { return (size_ + kGuard) * sizeof(T); }

  T* data_ = nullptr;
  const size_t size_;
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

}  // namespace engine::cuda_ops::test
