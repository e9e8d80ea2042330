// Softmax, and its logarithm, along an axis; of scores of attention, with what masks them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/strided.h"

namespace engine::cuda_ops {

// Rows of `length` elements that lie `inner` apart: tensors are (rows / inner, length, inner).
struct SoftmaxShape {
  int64_t rows = 0, length = 0, inner = 1;
  bool log = false;
};

// Of scores (samples, heads, queries, keys), which are rows of keys: the mask, with strides for these
// four axes, is added to them; `causal`: query i sees no key behind key i.
struct ScoreMask {
  int64_t heads = 1, queries = 1;
  StridedTensor mask;  // or null
  bool causal = false;
};

// T is float or __nv_bfloat16; From is T or float. y may be x where they are of one type.
template <typename From, typename T>
cudaError_t LaunchSoftmax(const SoftmaxShape& shape, const ScoreMask& mask, const From* x, T* y,
                          cudaStream_t stream) noexcept;

// dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) of the logarithm; added when `sum`. It may be dy
// where they are of one type. To is T or float.
template <typename From, typename T, typename To>
cudaError_t LaunchSoftmaxGradient(const SoftmaxShape& shape, const T* y, const From* dy, To* dx,
                                  bool sum, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
