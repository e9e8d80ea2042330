#include "kernels/channel_packs.h"
#include "kernels/pool.h"

namespace engine::cuda_ops {
namespace {

constexpr int kThreads = 256;

struct Range {
  int32_t begin, end;
};

// The taps of the window at `output` that are on an axis of `extent`.
__device__ inline Range TapsAt(const PoolShape& shape, int64_t output, int64_t extent) {
  const int64_t origin = output * shape.stride - shape.padding;
  const int64_t left = extent - origin;
  return {origin < 0 ? static_cast<int32_t>(-origin) : 0,
          left < shape.kernel ? static_cast<int32_t>(left) : shape.kernel};
}

// The windows of an axis that `input` is in.
__device__ inline Range WindowsAt(const PoolShape& shape, int64_t input, int64_t outputs) {
  const int64_t last = input + shape.padding;
  const int64_t before = last - shape.kernel + 1;
  const int64_t end = last / shape.stride + 1;
  return {before <= 0 ? 0 : static_cast<int32_t>((before + shape.stride - 1) / shape.stride),
          static_cast<int32_t>(end < outputs ? end : outputs)};
}

// Some channels of a position of a tensor (samples, height, width, channels): `index` counts packs
// of kCount channels.
template <int kCount>
struct Place {
  int64_t sample, y, x, channel;

  __device__ Place(int64_t index, int64_t height, int64_t width, int64_t channels) {
    const int64_t packs = channels / kCount;
    const int64_t column = index / packs, row = column / width;
    channel = index % packs * kCount;
    x = column % width;
    y = row % height;
    sample = row / height;
  }
};

// Calls body(tap number, index in x) for the taps of the window at `at`.
template <int kCount, typename Body>
__device__ inline void ForTaps(const PoolShape& shape, const Place<kCount>& at, const Body& body) {
  const Range rows = TapsAt(shape, at.y, shape.height), columns = TapsAt(shape, at.x, shape.width);
  for (int32_t i = rows.begin; i < rows.end; ++i) {
    const int64_t row = at.sample * shape.height + at.y * shape.stride - shape.padding + i;
    for (int32_t j = columns.begin; j < columns.end; ++j) {
      const int64_t column = at.x * shape.stride - shape.padding + j;
      body(i * shape.kernel + j, (row * shape.width + column) * shape.channels + at.channel);
    }
  }
}

// Calls body(tap number, index in y) for the windows that the input at `at` is in.
template <int kCount, typename Body>
__device__ inline void ForWindows(const PoolShape& shape, const Place<kCount>& at,
                                  const Body& body) {
  const Range rows = WindowsAt(shape, at.y, shape.output_height);
  const Range columns = WindowsAt(shape, at.x, shape.output_width);
  for (int32_t i = rows.begin; i < rows.end; ++i) {
    const auto tap_row = static_cast<int32_t>(at.y + shape.padding - int64_t{i} * shape.stride);
    for (int32_t j = columns.begin; j < columns.end; ++j) {
      const auto tap_column =
          static_cast<int32_t>(at.x + shape.padding - int64_t{j} * shape.stride);
      const int64_t window = (at.sample * shape.output_height + i) * shape.output_width + j;
      body(tap_row * shape.kernel + tap_column, window * shape.channels + at.channel);
    }
  }
}

__device__ inline int64_t ThreadIndex() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

template <int kCount, typename T>
__global__ void MaxPool(PoolShape shape, const T* x, T* y, uint8_t* taps, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const Place<kCount> place(index, shape.output_height, shape.output_width, shape.channels);
  float largest[kCount] = {};
  int32_t chosen[kCount] = {};
  bool first = true;
  ForTaps(shape, place, [&](int32_t tap, int64_t from) {
    const Pack<T, kCount> values = LoadPack<kCount>(x + from);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float value = ToFloat(values.at[j]);
      const bool keep = !first && (value <= largest[j] || largest[j] != largest[j]);
      largest[j] = keep ? largest[j] : value;
      chosen[j] = keep ? chosen[j] : tap;
    }
    first = false;
  });
  PutPack<kCount>(y + index * kCount, largest, false);
  if (taps == nullptr) return;
  Pack<uint8_t, kCount> numbers;
#pragma unroll
  for (int j = 0; j < kCount; ++j) numbers.at[j] = static_cast<uint8_t>(chosen[j]);
  StorePack(taps + index * kCount, numbers);
}

template <int kCount, typename T>
__global__ void MaxPoolGradient(PoolShape shape, const T* dy, const uint8_t* taps, T* dx, bool sum,
                                int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float gradients[kCount] = {};
  ForWindows(shape, Place<kCount>(index, shape.height, shape.width, shape.channels),
             [&](int32_t tap, int64_t window) {
               const Pack<T, kCount> values = LoadPack<kCount>(dy + window);
               const Pack<uint8_t, kCount> chosen = LoadPack<kCount>(taps + window);
#pragma unroll
               for (int j = 0; j < kCount; ++j) {
                 if (chosen.at[j] == tap) gradients[j] += ToFloat(values.at[j]);
               }
             });
  PutPack<kCount>(dx + index * kCount, gradients, sum);
}

// Adds kCount elements of `from` to `totals`.
template <int kCount, typename T>
__device__ inline void AddPack(float (&totals)[kCount], const T* from) {
  const Pack<T, kCount> values = LoadPack<kCount>(from);
#pragma unroll
  for (int j = 0; j < kCount; ++j) totals[j] += ToFloat(values.at[j]);
}

template <int kCount>
__device__ inline void Divide(float (&totals)[kCount], float divisor) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) totals[j] /= divisor;
}

template <int kCount, typename T>
__global__ void AvgPool(PoolShape shape, const T* x, T* y, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float totals[kCount] = {};
  ForTaps(shape, Place<kCount>(index, shape.output_height, shape.output_width, shape.channels),
          [&](int32_t, int64_t from) { AddPack(totals, x + from); });
  Divide(totals, shape.divisor);
  PutPack<kCount>(y + index * kCount, totals, false);
}

template <int kCount, typename T>
__global__ void AvgPoolGradient(PoolShape shape, const T* dy, T* dx, bool sum, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float totals[kCount] = {};
  ForWindows(shape, Place<kCount>(index, shape.height, shape.width, shape.channels),
             [&](int32_t, int64_t window) { AddPack(totals, dy + window); });
  Divide(totals, shape.divisor);
  PutPack<kCount>(dx + index * kCount, totals, sum);
}

// A thread for each of `count` packs.
template <typename Kernel, typename... Arguments>
cudaError_t ForEach(int64_t count, Kernel* kernel, cudaStream_t stream,
                    const Arguments&... arguments) noexcept {
  if (count == 0) return cudaSuccess;
  return Launch(kernel, dim3(BlocksFor(count, kThreads)), dim3(kThreads), 0, stream, arguments...,
                count);
}

}  // namespace

template <typename T>
cudaError_t LaunchMaxPool(const PoolShape& shape, const T* x, T* y, uint8_t* taps,
                          cudaStream_t stream) noexcept {
  return WithPackSize<T>(shape.channels, {x, y}, [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    return ForEach(shape.outputs() / kCount, MaxPool<kCount, T>, stream, shape, x, y, taps);
  });
}

template <typename T>
cudaError_t LaunchMaxPoolGradient(const PoolShape& shape, const T* dy, const uint8_t* taps, T* dx,
                                  bool sum, cudaStream_t stream) noexcept {
  return WithPackSize<T>(shape.channels, {dy, dx}, [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    return ForEach(shape.inputs() / kCount, MaxPoolGradient<kCount, T>, stream, shape, dy, taps, dx,
                   sum);
  });
}

template <typename T>
cudaError_t LaunchAvgPool(const PoolShape& shape, const T* x, T* y, cudaStream_t stream) noexcept {
  return WithPackSize<T>(shape.channels, {x, y}, [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    return ForEach(shape.outputs() / kCount, AvgPool<kCount, T>, stream, shape, x, y);
  });
}

template <typename T>
cudaError_t LaunchAvgPoolGradient(const PoolShape& shape, const T* dy, T* dx, bool sum,
                                  cudaStream_t stream) noexcept {
  return WithPackSize<T>(shape.channels, {dy, dx}, [&](auto count) {
    constexpr int kCount = decltype(count)::value;
    return ForEach(shape.inputs() / kCount, AvgPoolGradient<kCount, T>, stream, shape, dy, dx, sum);
  });
}

#define CUDA_OPS_INSTANTIATE(T)                                                                    \
  template cudaError_t LaunchMaxPool(const PoolShape&, const T*, T*, uint8_t*,                     \
                                     cudaStream_t) noexcept;                                       \
  template cudaError_t LaunchMaxPoolGradient(const PoolShape&, const T*, const uint8_t*, T*, bool, \
                                             cudaStream_t) noexcept;                               \
  template cudaError_t LaunchAvgPool(const PoolShape&, const T*, T*, cudaStream_t) noexcept;       \
  template cudaError_t LaunchAvgPoolGradient(const PoolShape&, const T*, T*, bool,                 \
                                             cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
