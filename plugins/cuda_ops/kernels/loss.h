// Softmax and cross entropy of rows of logits.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/fault.h"
#include "kernels/functions.h"

namespace engine::cuda_ops {

constexpr int32_t kIgnoredTarget = -1;  // counts for nothing

// The sum of exp(x) over some elements, as factor * exp(largest): neither overflows. Nothing but
// -infinity (or NaN) so far: largest is -infinity.
struct ExponentialSum {
  float largest = -INFINITY;
  float factor = 0;

  // A NaN does not become the largest: it shows in the sum.
  __host__ __device__ void Raise(float to) {
    if (!(to > largest)) return;
    factor *= expf(largest - to);
    largest = to;
  }
};

// Whether logit `i` keeps the target from being the first of the largest.
__host__ __device__ inline bool Beats(float x, int64_t i, float target_x, int64_t target) {
  return x > target_x || (x == target_x && i < target);
}

// What a row adds to the loss.
struct RowLoss {
  float loss;
  float tally;  // 0: no target; 1; 2: and the prediction is correct
};

// exp(x) for logits in T: as good as T is.
template <typename T>
__host__ __device__ inline float ExponentialOf(float x) {
  return sizeof(T) < sizeof(float) ? QuickExp(x) : expf(x);
}

// What softmax(x) - onehot(target) has at x[i], for log_sum = log(sum(exp(x))).
template <typename T>
__host__ __device__ inline float LossSlope(float x, float log_sum, bool is_target) {
  return ExponentialOf<T>(x - log_sum) - (is_target ? 1.0f : 0.0f);
}

// losses[row], and log_sums[row] = log(sum(exp(x))) unless that is null. A target outside of
// [0, width) that is not kIgnoredTarget is reported and counts for nothing. T is float or
// __nv_bfloat16. Unless `dx` is null, it becomes the gradient of the sum of losses, softmax(x) -
// onehot(target), 0 in rows without a target; it may be x. A row is then read once if a block can
// hold it, that is if it has at most `shared_bytes`.
template <typename T>
cudaError_t LaunchRowLosses(const T* x, const int32_t* targets, int64_t rows, int64_t width,
                            RowLoss* losses, float* log_sums, T* dx, int64_t shared_bytes,
                            DeviceFault* fault, cudaStream_t stream) noexcept;

// out = {sum of losses, number of targets, number of correct predictions}.
cudaError_t LaunchSumLosses(const RowLoss* losses, int64_t rows, float* out,
                            cudaStream_t stream) noexcept;

// dx = *scale * dx, for the dx of LaunchRowLosses.
template <typename T>
cudaError_t LaunchScaleLossGradient(const float* scale, T* dx, int64_t count,
                                    cudaStream_t stream) noexcept;

// dx = *scale * (softmax(x) - onehot(target)), 0 in rows without a target; added when `sum`.
template <typename T>
cudaError_t LaunchLossGradient(const T* x, const int32_t* targets, const float* log_sums,
                               const float* scale, int64_t rows, int64_t width, T* dx, bool sum,
                               cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
