// Flash attention in bfloat16, backward: heads of 64 or 128 columns, any length, causal or not.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/attention_shape.h"

namespace engine::cuda_ops {

// Without atomics, so in one order: a block owns a tile of keys and visits tiles of queries for dk
// and dv; another owns a tile of queries and visits tiles of keys for dq. Both recompute the
// probabilities.
cudaError_t LaunchFlashBackward(const AttentionShape& shape,
                                const AttentionBackwardCall<__nv_bfloat16>& call,
                                cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
