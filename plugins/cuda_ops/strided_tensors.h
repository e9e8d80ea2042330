// Tensors of ops as kernels/strided.h has them.
#pragma once

#include <cstdint>

#include "engine/tensor.h"
#include "kernels/strided.h"

namespace engine::cuda_ops {

static_assert(kMaxAxes >= kMaxDims);

inline bool IsBf16(const TensorView& x) noexcept {
  return x.dtype == DType::kBFloat16;
}

// Over the elements of a shape; tensors are still to be named.
inline StridedMap MapOver(const Shape& space) noexcept {
  StridedMap map;
  map.axes = space.ndim;
  for (int32_t i = 0; i < space.ndim; ++i) map.extents[i] = space[i];
  return map;
}

// `x` as a dense tensor of its shape, axis by axis.
inline StridedTensor Dense(const TensorView& x) noexcept {
  StridedTensor tensor = {x.data, IsBf16(x), {}};
  int64_t stride = 1;
  for (int32_t i = x.shape.ndim - 1; i >= 0; --i) {
    tensor.strides[i] = stride;
    stride *= x.shape[i];
  }
  return tensor;
}

// `x` repeated to a space of `ndim` axes by NumPy's rules: extents of 1, and axes that it does not
// have, are repeated.
inline StridedTensor Repeated(const TensorView& x, int32_t ndim) noexcept {
  const StridedTensor dense = Dense(x);
  StridedTensor tensor = {x.data, dense.bf16, {}};
  for (int32_t i = 1; i <= x.shape.ndim; ++i) {
    if (x.shape[-i] != 1) tensor.strides[ndim - i] = dense.strides[x.shape.ndim - i];
  }
  return tensor;
}

// Moves the origin of a tensor by so many elements.
inline void Move(int64_t elements, StridedTensor* tensor) noexcept {
  const int64_t size = tensor->bf16 ? 2 : 4;
  tensor->data = static_cast<char*>(tensor->data) + elements * size;
}

}  // namespace engine::cuda_ops
