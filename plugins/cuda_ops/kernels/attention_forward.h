// Flash attention in bfloat16, forward: heads of 64 or 128 columns, any length, causal or not.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention_shape.h"

namespace engine::cuda_ops {

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

}  // namespace engine::cuda_ops
