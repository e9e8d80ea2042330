// Arithmetic on flat arrays in device memory: see FlatMath in engine/ext/accelerator.h.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace engine::cuda_ops {

// What an AdamW update of one parameter multiplies with, folded in double precision; the formula of
// the plugin adamw.
struct AdamWCoefficients {
  float kept = 1;               // 1 - learning_rate * weight_decay
  float step_size = 0;          // learning_rate / (1 - beta1^t)
  float inverse_root_bias = 1;  // 1 / sqrt(1 - beta2^t)
};

__host__ __device__ inline AdamWCoefficients FoldAdamW(double learning_rate, double weight_decay,
                                                       double beta1, double beta2, double step) {
  AdamWCoefficients folded;
  folded.kept = static_cast<float>(1 - learning_rate * weight_decay);
  folded.step_size = static_cast<float>(learning_rate / (1 - pow(beta1, step)));
  folded.inverse_root_bias = static_cast<float>(1 / sqrt(1 - pow(beta2, step)));
  return folded;
}

__host__ __device__ inline float AdamWElement(const AdamWCoefficients& c, float beta1, float beta2,
                                              float epsilon, float g, float value, float* m,
                                              float* v) {
  *m = beta1 * *m + (1 - beta1) * g;
  *v = beta2 * *v + (1 - beta2) * (g * g);
  return value * c.kept - c.step_size * (*m / (sqrtf(*v) * c.inverse_root_bias + epsilon));
}

__host__ __device__ inline float SgdElement(float learning_rate, float momentum, bool nesterov,
                                            float g, float value, float* velocity) {
  if (velocity == nullptr) return value - learning_rate * g;
  *velocity = momentum * *velocity + g;
  return value - learning_rate * (nesterov ? g + momentum * *velocity : *velocity);
}

// One span of an update, as kernels get it: AdamW has two states, SGD one or none.
struct KernelSpan {
  float* value;
  const float* gradient;
  float* states[2];
  void* value_bf16;
  const float* gradient_scale;
  int64_t count;
  float learning_rate_scale;
  float weight_decay;
};

// Spans of one kernel, each with blocks of its own.
template <typename Span, int kMost>
struct SpanTable {
  Span at[kMost];
  int32_t first_block[kMost];  // of the grid
  int32_t count = 0, blocks = 0;

  bool full() const { return count == kMost; }
  // `chunk`: elements of a block.
  void Add(const Span& span, int64_t chunk) {
    at[count] = span;
    first_block[count++] = blocks;
    blocks += static_cast<int32_t>((span.count + chunk - 1) / chunk);
  }
  // The span of a block.
  __host__ __device__ int32_t IndexOf(unsigned block) const {
    int32_t index = 0;
    while (index + 1 < count && first_block[index + 1] <= static_cast<int32_t>(block)) ++index;
    return index;
  }
};

using UpdateSpans = SpanTable<KernelSpan, 40>;  // a kernel's parameters have at most 4 KiB
constexpr int64_t kUpdateBlock = 4096;          // elements of one block

struct KernelRule {
  float beta1 = 0, beta2 = 0, epsilon = 0;  // AdamW
  float momentum = 0;                       // SGD
  bool adamw = false;
  bool nesterov = false;
};

// `step` and `learning_rate` are device memory.
cudaError_t LaunchUpdate(const UpdateSpans& spans, const KernelRule& rule, const uint64_t* step,
                         const float* learning_rate, cudaStream_t stream) noexcept;

// Spans of one kernel that adds up squares; every block has `chunk` elements of one of them.
struct SquareSpan {
  const float* data;
  const float* scale;
  int64_t count;
};
struct SquareSpans : SpanTable<SquareSpan, 100> {
  int64_t chunk = 0;
};
constexpr int64_t kMaxPartials = 1 << 16;

// Elements of a block, so that `total` elements in `spans` spans take at most kMaxPartials blocks;
// 0 if there are too many spans.
inline int64_t SquareChunk(int64_t total, int64_t spans) {
  constexpr int64_t kLeast = 1 << 14;
  if (spans >= kMaxPartials) return 0;
  const int64_t needed = total / (kMaxPartials - spans) + 1;
  return needed < kLeast ? kLeast : needed;
}

// partials[b] = the sum of the scaled squares of block b.
cudaError_t LaunchSquares(const SquareSpans& spans, double* partials, cudaStream_t stream) noexcept;
// *sum = partials[0] + ... + partials[count - 1].
cudaError_t LaunchSum(const double* partials, int64_t count, float* sum,
                      cudaStream_t stream) noexcept;

constexpr int kMaxScales = 400;
struct ScaleTable {
  float* at[kMaxScales];
  int32_t count = 0;
};
cudaError_t LaunchScaleToNorm(const ScaleTable& scales, const float* square, float max_norm,
                              cudaStream_t stream) noexcept;
cudaError_t LaunchClampValue(float* data, int64_t count, const float* scale, float limit,
                             cudaStream_t stream) noexcept;
cudaError_t LaunchFillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                               cudaStream_t stream) noexcept;
cudaError_t LaunchAdd(float* target, const float* source, int64_t count,
                      cudaStream_t stream) noexcept;

// Between float, __nv_bfloat16 and __half, of which one is float.
template <typename From, typename To>
cudaError_t LaunchConvert(const From* source, To* target, int64_t count,
                          cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
