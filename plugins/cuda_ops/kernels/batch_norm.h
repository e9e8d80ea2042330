// Passes over rows of channels, (rows, C): sums of each channel over rows in two steps with one
// order, and functions of an element and a few numbers of its channel. T is float or
// __nv_bfloat16.
//
// Sums and means are doubles, so a large mean costs no digits. A pass over all elements takes the
// mean as a float that is near it, and what this leaves is worked into another coefficient.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// Of a channel over some rows.
struct Moments {
  double count, mean, squares;  // of differences from the mean
};
struct GradientSums {
  double dy, product;  // dy (x - mean)
};

// The parts that rows are cut into for the first step of a sum; 0 for no rows. Fewer rows do not
// have more parts.
int64_t BatchNormParts(int64_t rows, int64_t channels) noexcept;

// `all` (C) becomes that of the rows. `parts`: scratch, BatchNormParts x C.
template <typename T>
cudaError_t LaunchMoments(const T* x, int64_t rows, int64_t channels, Moments* parts, Moments* all,
                          cudaStream_t stream) noexcept;
template <typename T>
cudaError_t LaunchGradientSums(const T* x, const T* dy, int64_t rows, int64_t channels,
                               const Moments* batch, GradientSums* parts, GradientSums* all,
                               cudaStream_t stream) noexcept;

struct BatchNormParameters {
  const float *weight, *bias;
  float *running_mean, *running_var;
  double momentum, epsilon;
};

// `coefficients` (4 C) for y, from the moments (ranks x C) of all ranks, in their order. Fills
// `batch` (C) and moves the running statistics. From those where `moments` is null.
cudaError_t LaunchUseMoments(const Moments* moments, int32_t ranks, int64_t channels,
                             const BatchNormParameters& parameters, Moments* batch,
                             float* coefficients, cudaStream_t stream) noexcept;

// A gradient that becomes, or has added, what is computed; null where it is not wanted.
struct ParameterGradient {
  float* data;
  bool sum;
};

// `coefficients` (4 C) for dx, from the sums (ranks x C) of all ranks, in their order; the
// gradients of the parameters from those of `rank`.
cudaError_t LaunchUseGradientSums(const GradientSums* sums, int32_t ranks, int32_t rank,
                                  int64_t channels, const BatchNormParameters& parameters,
                                  const Moments* batch, ParameterGradient weight,
                                  ParameterGradient bias, float* coefficients,
                                  cudaStream_t stream) noexcept;

// r = (x - coefficients[0][c]) coefficients[1][c] + coefficients[2][c], which is y; or, unless `dy`
// is null, dx = (dy + r) coefficients[3][c]. `out` becomes it or has it added.
template <typename T>
cudaError_t LaunchNormalize(const T* x, const T* dy, T* out, int64_t rows, int64_t channels,
                            const float* coefficients, bool sum, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
