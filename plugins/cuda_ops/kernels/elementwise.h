// y = f(x), element by element, and sums. Sources and targets may be the same memory, but may not
// overlap otherwise.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/functions.h"

namespace engine::cuda_ops {

// y[i] = function.Value(x[i]). Function is one of functions.h; T is float or __nv_bfloat16.
template <typename Function, typename T>
cudaError_t LaunchFunction(const T* x, T* y, int64_t count, cudaStream_t stream,
                           const Function& function = {}) noexcept;

// dx[i] = function.Gradient(read[i], dy[i]), added to what is there when `sum`. To is T, or float.
template <typename Function, typename T, typename To>
cudaError_t LaunchFunctionGradient(const T* read, const T* dy, To* dx, bool sum, int64_t count,
                                   cudaStream_t stream, const Function& function = {}) noexcept;

// y[i] = a[i] + b[i].
template <typename T>
cudaError_t LaunchSum(const T* a, const T* b, T* y, int64_t count, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
