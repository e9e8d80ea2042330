// Rows of a bias; and sums over the rows of a matrix, in two steps with one order: each part of the
// rows gives a row of partial sums in float32, and those are added.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// Every row of y (rows, width) becomes `bias`. T is float or __nv_bfloat16.
template <typename T>
cudaError_t LaunchFillRows(const T* bias, T* y, int64_t rows, int64_t width,
                           cudaStream_t stream) noexcept;

// How many parts the rows of a (rows, width) matrix are cut into, at least 1: enough for every
// multiprocessor, and not so many that the second step is work. More rows have as many or more.
int64_t ColumnParts(int64_t rows, int64_t width, int32_t multiprocessors) noexcept;

// partials (parts, width) become sums of the columns of x (rows, width). T is float or
// __nv_bfloat16.
template <typename T>
cudaError_t LaunchColumnSums(const T* x, int64_t rows, int64_t width, float* partials,
                             int64_t parts, cudaStream_t stream) noexcept;

// dx = dy * gelu'(x), and the sums of its columns, as they are stored. `partials` may be null: no
// sums. dx and dy may be the same memory.
template <typename T>
cudaError_t LaunchGeluGradient(const T* x, const T* dy, T* dx, int64_t rows, int64_t width,
                               float* partials, int64_t parts, cudaStream_t stream) noexcept;

// target[i] becomes, or has added when `sum`, the sum over parts p of partials[p * stride + i], in
// the order of the parts.
cudaError_t LaunchAddParts(const float* partials, int64_t parts, int64_t stride, int64_t width,
                           float* target, bool sum, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
