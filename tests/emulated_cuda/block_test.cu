// The emulated language: barriers, shuffles, shared memory, and what ends the process.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "kernels/element.h"
#include "kernels/launch.h"
#include "kernels/mma.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

// Memory of the device that the host of this test reads as well, and a stream.
template <typename T>
class Array {
 public:
  explicit Array(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), cudaSuccess);
  }
  ~Array() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }

  T* data() { return data_; }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  const size_t size_;
};

__global__ void WriteIndex(int* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = i;
}

TEST(Emulated, EveryThreadOfTheGridRunsOnce) {
  Array<int> out(1000);
  ASSERT_EQ(Launch(WriteIndex, BlocksFor(1000, 64), 64, 0, nullptr, out.data(), 1000), cudaSuccess);
  std::vector<int> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(out.Read(), expected);
}

__global__ void SumBlocks(const float* in, float* out) {
  __shared__ float scratch[32];
  const float value = in[blockIdx.x * blockDim.x + threadIdx.x];
  const float sum = BlockReduce(value, AddFloats(), 0.0f, scratch);
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

TEST(Emulated, BlockReduce) {
  Array<float> in(512), out(512);
  std::vector<float> values(512);
  for (size_t i = 0; i < 512; ++i) values[i] = static_cast<float>(i * i % 17);
  cudaMemcpy(in.data(), values.data(), 2048, cudaMemcpyHostToDevice);
  ASSERT_EQ(Launch(SumBlocks, 2, 256, 0, nullptr, in.data(), out.data()), cudaSuccess);
  const std::vector<float> sums = out.Read();
  for (size_t i = 0; i < 512; ++i) {
    const auto first = values.begin() + (i < 256 ? 0 : 256);
    EXPECT_EQ(sums[i], std::accumulate(first, first + 256, 0.0f)) << i;
  }
}

}  // namespace
}  // namespace engine::cuda_ops
