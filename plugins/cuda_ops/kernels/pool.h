// The largest or the mean of each window of a channels-last plane.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// x (samples, height, width, channels), y (samples, output_height, output_width, channels). What is
// padded is no element of a window for the maximum and a zero for the mean.
struct PoolShape {
  int32_t kernel = 1, stride = 1, padding = 0;
  int64_t samples = 0, height = 0, width = 0, channels = 0;
  int64_t output_height = 0, output_width = 0;
  float divisor = 0;  // of a mean: the elements of a window

  bool is_max() const noexcept { return divisor == 0; }
  int64_t inputs() const noexcept { return samples * height * width * channels; }
  int64_t outputs() const noexcept { return samples * output_height * output_width * channels; }
};

// `taps`, unless null or of a mean, becomes for each output the number (row * kernel + column)
// of the tap that was the largest; the first of equals. NaN is larger than anything.
template <typename T>
cudaError_t LaunchPool(const PoolShape& shape, const T* x, T* y, uint8_t* taps,
                       cudaStream_t stream) noexcept;
// dx becomes, or has added, its part of the gradients of the windows that it is in, or whose
// largest it was. Each input looks for its windows, so every gradient is written once.
template <typename T>
cudaError_t LaunchPoolGradient(const PoolShape& shape, const T* dy, const uint8_t* taps, T* dx,
                               bool sum, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
