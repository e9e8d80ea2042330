// Rotations of pairs of columns by angles that depend on the row.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// x (rows, width), where row r is position r % length; cos and sin (length, width). Columns 2i and
// 2i + 1 are a pair if `interleaved`, else i and i + width / 2.
struct RotaryShape {
  int64_t rows = 0, length = 1, width = 2;
  bool interleaved = false;
};

// A pair (a, b) at columns i and j becomes (a cos_i - b sin_i, b cos_j + a sin_j); `backward`: by the
// transpose of that. y may be x; added when `sum`. T is float or __nv_bfloat16, To that or float.
template <typename T, typename To>
cudaError_t LaunchRotary(const RotaryShape& shape, const T* x, const T* cos, const T* sin, To* y,
                         bool backward, bool sum, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
