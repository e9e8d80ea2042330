// The kernels of attention, and what they work on.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/launch.h"

namespace engine::cuda_ops {

// Shared memory of a block that every device has on which the plugin runs: 8.6 and 8.9 have the
// least, 99 KiB.
constexpr int64_t kSharedLimit = 99 << 10;

enum class QkvPart { kQuery = 0, kKey = 1, kValue = 2 };

// Self-attention over qkv (batch, length, 3, heads, head_size): queries, keys and values side by
// side. y and its gradient are (batch, length, heads, head_size), the gradient of qkv is laid out
// like qkv, and a number per row of scores is (batch, heads, length).
struct AttentionShape {
  int32_t batch = 0, length = 0, heads = 0, head_size = 0;
  bool causal = false;

  // Elements between two positions of y, and of qkv.
  __host__ __device__ int64_t width() const { return int64_t{heads} * head_size; }
  __host__ __device__ int64_t packed_width() const { return 3 * width(); }
  // Index of the first element of a head at position 0: in y, and of a part of qkv.
  __host__ __device__ int64_t row_offset(int32_t sample, int32_t head) const {
    return sample * (length * width()) + int64_t{head} * head_size;
  }
  __host__ __device__ int64_t packed_offset(int32_t sample, int32_t head, QkvPart part) const {
    return sample * (length * packed_width()) + static_cast<int>(part) * width() +
           int64_t{head} * head_size;
  }
  // Of the numbers that there is one of for each row of scores.
  __host__ __device__ int64_t statistics_offset(int32_t sample, int32_t head) const {
    return (int64_t{sample} * heads + head) * length;
  }
};

// Memory of one backward pass.
template <typename T>
struct AttentionBackwardCall {
  const T* qkv = nullptr;
  const T* y = nullptr;
  const float* log_sums = nullptr;  // (batch, heads, length), of the forward pass
  const T* dy = nullptr;
  T* dqkv = nullptr;       // written
  float* delta = nullptr;  // scratch, (batch, heads, length): sum over a row of y dy
  bool sum = false;        // add to dqkv
};

// Flash attention in bfloat16: any length, causal or not.

// Whether the flash kernels know heads of this size. They also want qkv, y and their gradients to
// be aligned to 16 bytes.
constexpr bool IsFlashHeadSize(int64_t head_size) noexcept {
  return head_size == 64 || head_size == 128;
}

// y = softmax(q k' / sqrt(head_size)) v. log_sums (batch, heads, length), unless null, becomes the
// logarithm of the sum of the exponentials of each row of scores.
// FlashAttention-2 (Dao, arXiv:2307.08691): a block owns a tile of queries and visits tiles of
// keys.
cudaError_t LaunchFlashForward(const AttentionShape& shape, const __nv_bfloat16* qkv,
                               __nv_bfloat16* y, float* log_sums, cudaStream_t stream) noexcept;

// Without atomics, so in one order: a block owns a tile of keys and visits tiles of queries for dk
// and dv; another owns a tile of queries and visits tiles of keys for dq. Both recompute the
// probabilities.
cudaError_t LaunchFlashBackward(const AttentionShape& shape,
                                const AttentionBackwardCall<__nv_bfloat16>& call,
                                cudaStream_t stream) noexcept;

// The largest head of the kernels below: what the rows of one warp take in shared memory.
constexpr int64_t kMaxPlainHeadSize = 1024;

// The same in float or bfloat16, for other heads and other alignments.

template <typename T>
cudaError_t LaunchPlainAttentionForward(const AttentionShape& shape, const T* qkv, T* y,
                                        float* log_sums, cudaStream_t stream) noexcept;

template <typename T>
cudaError_t LaunchPlainAttentionBackward(const AttentionShape& shape,
                                         const AttentionBackwardCall<T>& call,
                                         cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
