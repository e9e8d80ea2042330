// y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the rows of a matrix. RMS norms,
// which are not `centred`, take 0 for the mean, also where the variance is computed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

struct RowStatistics {
  float mean;
  float inverse_deviation;
};

// T is float or __nv_bfloat16; matrices are (rows, width), weight and bias (width).
template <typename T>
struct LayerNormForward {
  const T* x;
  const T* addend;  // or null; else the row that is normalised is x + addend, as `sum` holds it
  T* sum;           // x + addend; may be x
  const float* weight;
  const float* bias;  // or null
  T* y;
  RowStatistics* statistics;  // or null
  int64_t rows, width;
  float epsilon;
  bool centred = true;
};

template <typename T>
cudaError_t LaunchLayerNorm(const LayerNormForward<T>& call, cudaStream_t stream) noexcept;

// With g = dy * weight and n = (x - mean) * scale:  dx = scale * (g - mean(g) - n * mean(g * n)), or,
// not centred, without mean(g).
template <typename T>
struct LayerNormBackward {
  const T* x;
  const float* weight;
  const T* dy;
  const T* dsum;  // or null; else is added to dx
  const RowStatistics* statistics;
  T* dx;            // or null; may be dsum or dy
  bool sum;         // add to dx
  float* partials;  // or null; (parts, 2, width): the sums of dy * n and of dy over parts of rows
  int64_t rows, width, parts;
  bool centred = true;
};

// The number of parts, at least 1: of more rows there are as many or more.
int64_t LayerNormParts(int64_t rows, int32_t multiprocessors) noexcept;

template <typename T>
cudaError_t LaunchLayerNormGradient(const LayerNormBackward<T>& call, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
