// Attention for any head size, in float or bfloat16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/attention_shape.h"

namespace engine::cuda_ops {

// The largest head: what the rows of one warp take in shared memory.
constexpr int64_t kMaxPlainHeadSize = 1024;

// As LaunchFlashForward (attention_forward.h).
template <typename T>
cudaError_t LaunchPlainAttentionForward(const AttentionShape& shape, const T* qkv, T* y,
                                        float* log_sums, cudaStream_t stream) noexcept;

// As LaunchFlashBackward (attention_backward.h).
template <typename T>
cudaError_t LaunchPlainAttentionBackward(const AttentionShape& shape,
                                         const AttentionBackwardCall<T>& call,
                                         cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
