// Passes over rows of channels, (rows, C): sums of each channel over rows in two steps with one
// order, and functions of an element and a few numbers of its channel. T is float or
// __nv_bfloat16.
//
// A mean is held as the sum of two floats, high + low: x - high is exact or nearly so for the x
// that are near the mean, so a large mean costs no digits, and `low` is worked into another
// coefficient.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// What Forward leaves for Backward: floats, in this order.
struct BatchNormSaved {
  float* count;                           // high and low, of values per channel on all ranks
  float *high, *low, *inverse_deviation;  // of each channel; the mean is high + low

  BatchNormSaved(void* memory, int64_t channels) noexcept
      : count(static_cast<float*>(memory)),
        high(count + kCountFloats),
        low(high + channels),
        inverse_deviation(low + channels) {}

  static int64_t Bytes(int64_t channels) noexcept {
    return (kCountFloats + 3 * channels) * static_cast<int64_t>(sizeof(float));
  }

 private:
  static constexpr int64_t kCountFloats = 4;
};

// What a rank tells the others of its rows. Of moments: {count (high), count (low), float[C] mean
// (high), mean (low), sum of squared deviations}; of gradients: {float[C] sum of dy, sum of
// dy (x - mean) / deviation}.
constexpr int64_t MomentFloats(int64_t channels) noexcept {
  return 2 + 3 * channels;
}
constexpr int64_t GradientFloats(int64_t channels) noexcept {
  return 2 * channels;
}

// The parts that rows are cut into for the first step of a sum; 0 for no rows. Fewer rows do not
// have more parts.
int64_t BatchNormParts(int64_t rows, int64_t channels) noexcept;

// Scratch of the two functions below, for `parts`.
constexpr int64_t BatchNormPartBytes(int64_t parts, int64_t channels) noexcept {
  return parts * 2 * channels * static_cast<int64_t>(sizeof(double));
}

// `moments` (MomentFloats) becomes those of the rows: to float precision relative to the deviation,
// however large the mean is beside it.
template <typename T>
cudaError_t LaunchMoments(const T* x, int64_t rows, int64_t channels, double* parts, float* moments,
                          cudaStream_t stream) noexcept;

// `sums` (GradientFloats) becomes those of the rows.
template <typename T>
cudaError_t LaunchGradientSums(const T* x, const T* dy, int64_t rows, int64_t channels,
                               const BatchNormSaved& saved, double* parts, float* sums,
                               cudaStream_t stream) noexcept;

struct BatchNormParameters {
  const float *weight, *bias;
  float *running_mean, *running_var;
  double momentum, epsilon;
};

// y = (x - high) scale + shift: `coefficients` (3 C: high, scale, shift).
// From the moments of all ranks, one behind the other and taken in their order; fills `saved` and
// moves the running statistics.
cudaError_t LaunchUseBatch(const float* moments, int32_t ranks, int64_t channels,
                           const BatchNormParameters& parameters, const BatchNormSaved& saved,
                           float* coefficients, cudaStream_t stream) noexcept;
// From the running statistics.
cudaError_t LaunchUseRunning(int64_t channels, const BatchNormParameters& parameters,
                             float* coefficients, cudaStream_t stream) noexcept;
template <typename T>
cudaError_t LaunchNormalize(const T* x, T* y, int64_t rows, int64_t channels,
                            const float* coefficients, cudaStream_t stream) noexcept;

// gradient[i] becomes, or has added, sums[i].
cudaError_t LaunchParameterGradient(const float* sums, float* gradient, int64_t channels, bool sum,
                                    cudaStream_t stream) noexcept;

// dx = ((dy - offset) - (x - high) slope) scale: `coefficients` (3 C: offset, slope, scale) from
// the sums of all ranks.
cudaError_t LaunchSlopes(const float* sums, int32_t ranks, int64_t channels, const float* weight,
                         const BatchNormSaved& saved, float* coefficients,
                         cudaStream_t stream) noexcept;
template <typename T>
cudaError_t LaunchNormalizeGradient(const T* x, const T* dy, T* dx, int64_t rows, int64_t channels,
                                    const float* high, const float* coefficients, bool sum,
                                    cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
