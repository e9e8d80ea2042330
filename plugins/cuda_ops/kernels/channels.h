// What is done to channels-last tensors besides pooling: transposition, biases, and sums over rows, in
// two steps with one order: each part of the rows gives a row of partial sums in float32, and those
// are added. From and To, and
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

// How many parts the rows of a (rows, width) matrix are cut into, at least 1: enough for every
// multiprocessor, and not so many that the second step is work. More rows have as many or more.
int64_t ColumnParts(int64_t rows, int64_t width, int32_t multiprocessors) noexcept;

// target (width) becomes, or has added when `sum`, the sums of the columns of x (rows, width), by
// way of partials (parts, width). T is float or __nv_bfloat16.
template <typename T>
cudaError_t LaunchColumnSums(const T* x, int64_t rows, int64_t width, float* partials,
                             int64_t parts, float* target, bool sum, cudaStream_t stream) noexcept;

// target[i] becomes, or has added when `sum`, the sum over parts p of partials[p * stride + i], in
// the order of the parts.
cudaError_t LaunchAddParts(const float* partials, int64_t parts, int64_t stride, int64_t width,
                           float* target, bool sum, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
