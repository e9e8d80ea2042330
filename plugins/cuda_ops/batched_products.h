// Products of matrices over dimensions that broadcast, with as few calls of cuBLASLt as their
// layout allows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "blas.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::cuda_ops {

// Matrices over some axes. Strides are in elements; 0 where one is repeated.
struct MatrixBatch {
  void* data = nullptr;
  int64_t strides[kMaxDims] = {};
  bool transposed = false;  // of a factor: stored (columns, rows)
};

// d (m, n) = scale a (m, k) b (k, n) for each element of the axes. Where d repeats, products are
// added up, in one order.
struct BatchedProduct {
  int64_t m = 0, n = 0, k = 0;
  int32_t axes = 0;
  int64_t extents[kMaxDims] = {};
  MatrixBatch a, b, d;
  DType factors = DType::kFloat32, result = DType::kFloat32;
  float scale = 1;
  bool sum = false;  // added to d

  // Whether there is nothing to multiply: then d is a sum over nothing, or has no elements.
  bool IsEmpty() const noexcept {
    int64_t count = m * n * k;
    for (int32_t i = 0; i < axes; ++i) count *= extents[i];
    return count == 0;
  }
};

// Not of an empty one.
Status Multiply(Blas& blas, const BatchedProduct& product, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
