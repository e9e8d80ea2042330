// What is done to channels-last tensors besides pooling: transposition and biases. From and To, and
// T, are float or __nv_bfloat16; sums are of floats.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// `batch` matrices x of rows x columns become, or are added to, matrices y of columns x rows.
template <typename From, typename To>
cudaError_t LaunchTranspose(const From* x, To* y, int64_t batch, int64_t rows, int64_t columns,
                            bool sum, cudaStream_t stream) noexcept;

// y (rows, channels) += bias (channels).
template <typename T>
cudaError_t LaunchAddBias(T* y, const T* bias, int64_t rows, int64_t channels,
                          cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
