// Losses: softmax and cross entropy of rows of logits, and differences of numbers
// (kit/loss_shapes.h).
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "kernels/fault.h"
#include "kernels/functions.h"

namespace engine::cuda_ops {

// What all losses can be told.
struct LossTerms {
  const float* sample_weights = nullptr;  // or null; target i has that of i / targets_per_weight
  int64_t targets_per_weight = 1;
  float factor = 1;        // of the sum of losses
  bool auxiliary = false;  // that sum alone is not 0
  // Of a loss over classes:
  const float* class_weights = nullptr;  // or null
  float smoothing = 0;
  int32_t ignored = -1;  // a target that counts for nothing
};

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

// What a row, or another part of the targets, adds to the three numbers of a loss.
struct RowLoss {
  float loss, weight, correct;
};

// exp(x) for logits in T: as good as T is.
template <typename T>
__host__ __device__ inline float ExponentialOf(float x) {
  return sizeof(T) < sizeof(float) ? QuickExp(x) : expf(x);
}

// T is float or __nv_bfloat16.
template <typename T>
struct SoftmaxLossCall {
  const T* x;  // (rows, width)
  const int32_t* targets;
  int64_t rows, width;
  LossTerms terms;
  float* log_sums;  // or null; of each row log(sum(exp(x))): written forward, read backward
  T* dx;            // or null forward
};

// losses[row], and log_sums. A target outside of [0, width) that is not ignored, and a sample weight
// below 0, are reported and count for nothing. Unless `dx` is null, it becomes the gradient of the
// sum of losses, without its factor, 0 in rows without a target; it may be x. A row is then read once
// if a block can hold it, that is if it has at most `shared_bytes`.
template <typename T>
cudaError_t LaunchRowLosses(const SoftmaxLossCall<T>& call, RowLoss* losses, int64_t shared_bytes,
                            DeviceFault* fault, cudaStream_t stream) noexcept;

// out = {sum of losses, of weights, of those of correct predictions}.
cudaError_t LaunchSumLosses(const RowLoss* losses, int64_t rows, const LossTerms& terms, float* out,
                            cudaStream_t stream) noexcept;

// dx = *scale * terms.factor * dx, for the dx of LaunchRowLosses.
template <typename T>
cudaError_t LaunchScaleLossGradient(const float* scale, float factor, T* dx, int64_t count,
                                    cudaStream_t stream) noexcept;

// dx = *scale times the gradient of the sum of losses; added when `sum`.
template <typename T>
cudaError_t LaunchLossGradient(const SoftmaxLossCall<T>& call, const float* scale, bool sum,
                               cudaStream_t stream) noexcept;

// Of predictions and targets that are numbers; with `p` for delta or pos_weight.
enum class ElementLoss : int32_t { kSquared, kAbsolute, kHuber, kBinary };

template <typename T>
struct ElementLossCall {
  ElementLoss kind;
  float p;
  const T* x;
  const void* targets;  // float, or int32_t of 0 and 1
  bool integers;
  int64_t count;
  LossTerms terms;
};

constexpr int64_t kElementLossPart = 4096;  // elements that one RowLoss is of

// losses[part], of parts of the elements. Wrong targets and weights as above.
template <typename T>
cudaError_t LaunchElementLosses(const ElementLossCall<T>& call, RowLoss* losses, DeviceFault* fault,
                                cudaStream_t stream) noexcept;
template <typename T>
cudaError_t LaunchElementLossGradient(const ElementLossCall<T>& call, const float* scale, T* dx,
                                      bool sum, cudaStream_t stream) noexcept;

#if defined(__CUDACC__) || defined(ENGINE_EMULATED_CUDA)
// That of target `i`.
__device__ inline float SampleWeight(const LossTerms& terms, int64_t i) {
  return terms.sample_weights == nullptr ? 1.0f
                                         : terms.sample_weights[i / terms.targets_per_weight];
}
// Whether it is one; if not, that is reported.
__device__ inline bool CheckSampleWeight(const LossTerms& terms, float weight, int64_t i,
                                         DeviceFault* fault) {
  if (weight >= 0.0f) return true;
  ReportFault(fault, DeviceFault::kWeight, 0, i / terms.targets_per_weight, 0, weight);
  return false;
}
#endif

}  // namespace engine::cuda_ops
