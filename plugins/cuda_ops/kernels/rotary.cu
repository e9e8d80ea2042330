#include "kernels/packs.h"
#include "kernels/rotary.h"

namespace engine::cuda_ops {
namespace {

// A thread has a pair.
template <typename T, typename To>
__global__ void RotaryKernel(const RotaryShape shape, const T* x, const T* cos, const T* sin, To* y,
                             bool backward, bool sum, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const int64_t half = shape.width / 2, row = index / half, pair = index % half;
  const int64_t i = shape.interleaved ? 2 * pair : pair;
  const int64_t j = shape.interleaved ? i + 1 : i + half;
  const int64_t table = row % shape.length * shape.width, at = row * shape.width;
  const float cos_i = ToFloat(cos[table + i]), cos_j = ToFloat(cos[table + j]);
  const float sin_i = ToFloat(sin[table + i]), sin_j = ToFloat(sin[table + j]);
  const float a = ToFloat(x[at + i]), b = ToFloat(x[at + j]);
  const float up = backward ? a * cos_i + b * sin_j : a * cos_i - b * sin_i;
  const float down = backward ? b * cos_j - a * sin_i : b * cos_j + a * sin_j;
  y[at + i] = FromFloat<To>(sum ? ToFloat(y[at + i]) + up : up);
  y[at + j] = FromFloat<To>(sum ? ToFloat(y[at + j]) + down : down);
}

}  // namespace

template <typename T, typename To>
cudaError_t LaunchRotary(const RotaryShape& shape, const T* x, const T* cos, const T* sin, To* y,
                         bool backward, bool sum, cudaStream_t stream) noexcept {
  return ForEach(shape.rows * (shape.width / 2), RotaryKernel<T, To>, stream, shape, x, cos, sin, y,
                 backward, sum);
}

template cudaError_t LaunchRotary(const RotaryShape&, const float*, const float*, const float*,
                                  float*, bool, bool, cudaStream_t) noexcept;
template cudaError_t LaunchRotary(const RotaryShape&, const Bf16*, const Bf16*, const Bf16*, Bf16*,
                                  bool, bool, cudaStream_t) noexcept;
template cudaError_t LaunchRotary(const RotaryShape&, const Bf16*, const Bf16*, const Bf16*, float*,
                                  bool, bool, cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
