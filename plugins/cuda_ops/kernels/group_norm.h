// Norms of groups of channels of each sample, over channels-last tensors.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/layer_norm.h"

namespace engine::cuda_ops {

// x (samples, positions, groups * width).
struct GroupNormShape {
  int64_t samples = 0, positions = 1, groups = 1, width = 1;
  float epsilon = 0;

  __host__ __device__ int64_t channels() const { return groups * width; }
  __host__ __device__ int64_t count() const { return samples * positions * channels(); }
};

// y = (x - mean) * inverse_deviation * weight + bias, with the statistics (samples, groups) of x,
// which are written. T is float or __nv_bfloat16.
template <typename T>
cudaError_t LaunchGroupNorm(const GroupNormShape& shape, const T* x, const float* weight,
                            const float* bias, T* y, RowStatistics* statistics,
                            cudaStream_t stream) noexcept;

// `sums` (samples, 2, channels): those of dy * n and of dy over positions, with n = (x - mean) *
// inverse_deviation. Added up over samples they are the gradients of weight and bias.
template <typename T>
cudaError_t LaunchGroupNormSums(const GroupNormShape& shape, const T* x, const T* dy,
                                const RowStatistics* statistics, float* sums,
                                cudaStream_t stream) noexcept;

// dx = inverse_deviation * (g - mean(g) - n * mean(g * n)) with g = dy * weight, by those sums;
// `means` is scratch (samples, groups). Added when `sum`.
template <typename T>
cudaError_t LaunchGroupNormGradient(const GroupNormShape& shape, const T* x, const T* dy,
                                    const float* weight, const RowStatistics* statistics,
                                    const float* sums, RowStatistics* means, T* dx, bool sum,
                                    cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
