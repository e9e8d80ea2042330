// Sums over a warp and over a block. One order, so the same bits in every run.
#pragma once

#include "kernels/launch.h"

namespace engine::cuda_ops {

struct AddNumbers {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct MaxFloats {
  __device__ float operator()(float a, float b) const { return a > b ? a : b; }
};

// The same result on all lanes. All 32 lanes take part.
template <typename T, typename Combine>
__device__ inline T WarpReduce(T value, Combine combine) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// The same result on all threads. blockDim.x is a multiple of 32, at most 1024, and the block has
// one dimension. `scratch` is shared memory of 32 elements, which may be used again afterwards.
template <typename T, typename Combine>
__device__ inline T BlockReduce(T value, Combine combine, T neutral, T* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  value = WarpReduce(value, combine);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = WarpReduce(lane < warps ? scratch[lane] : neutral, combine);
  __syncthreads();
  return value;
}

}  // namespace engine::cuda_ops
