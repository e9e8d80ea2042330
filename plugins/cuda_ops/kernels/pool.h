// The largest or the mean of each window of a channels-last plane.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// A window of `kernel` taps, `dilation` positions apart, that moves by `stride` over an axis of
// `inputs` positions with `before` and `after` positions of padding at its ends.
struct PoolAxis {
  int64_t inputs = 1, outputs = 1;
  int32_t kernel = 1, stride = 1, before = 0, after = 0, dilation = 1;
};

// What is divided by: nothing (the largest is taken), the positions of a window, the padded ones with
// the others or not.
enum class PoolKind : int32_t { kMax, kMeanOfPadded, kMeanOfInputs };

// x (samples, rows.inputs, columns.inputs, channels), y the same with outputs. What is padded is no
// element of a window for the maximum and a zero for the mean.
struct PoolShape {
  PoolAxis rows, columns;
  int64_t samples = 0, channels = 0;
  PoolKind kind = PoolKind::kMax;

  bool is_max() const noexcept { return kind == PoolKind::kMax; }
  int64_t inputs() const noexcept { return samples * rows.inputs * columns.inputs * channels; }
  int64_t outputs() const noexcept { return samples * rows.outputs * columns.outputs * channels; }
  // Of the number of a tap.
  int64_t tap_bytes() const noexcept {
    return int64_t{rows.kernel} * columns.kernel <= 256 ? sizeof(uint8_t) : sizeof(int32_t);
  }
};

// `taps`, unless null or of a mean, becomes for each output the number (row * kernel + column), in
// tap_bytes(), of the tap that was the largest; the first of equals. NaN is larger than anything.
template <typename T>
cudaError_t LaunchPool(const PoolShape& shape, const T* x, T* y, void* taps,
                       cudaStream_t stream) noexcept;
// dx becomes, or has added, its part of the gradients of the windows that it is in, or whose
// largest it was. Each input looks for its windows, so every gradient is written once.
template <typename T>
cudaError_t LaunchPoolGradient(const PoolShape& shape, const T* dy, const void* taps, T* dx,
                               bool sum, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
