#include "kernels/packs.h"
#include "kernels/pool.h"

namespace engine::cuda_ops {
namespace {

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

template <int kCount>
__device__ inline void Divide(float (&totals)[kCount], float divisor) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) totals[j] /= divisor;
}

// The largest of each window, and its tap, or the mean.
template <bool kMax, int kCount, typename T>
__global__ void Pool(PoolShape shape, const T* x, T* y, uint8_t* taps, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const Place<kCount> place(index, shape.output_height, shape.output_width, shape.channels);
  float results[kCount] = {};
  Pack<uint8_t, kCount> chosen = {};
  bool first = true;
  ForTaps(shape, place, [&](int32_t tap, int64_t from) {
    const Pack<T, kCount> values = LoadPack<kCount>(x + from);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float value = ToFloat(values.at[j]), before = results[j];
      const bool keeps = kMax && !first && (value <= before || before != before);
      if (keeps) continue;
      results[j] = kMax ? value : before + value;
      chosen.at[j] = static_cast<uint8_t>(tap);
    }
    first = false;
  });
  if (!kMax) Divide(results, shape.divisor);
  PutPack<kCount>(y + index * kCount, results, false);
  if (kMax && taps != nullptr) StorePack(taps + index * kCount, chosen);
}

template <bool kMax, int kCount, typename T>
__global__ void PoolGradient(PoolShape shape, const T* dy, const uint8_t* taps, T* dx, bool sum,
                             int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float gradients[kCount] = {};
  ForWindows(shape, Place<kCount>(index, shape.height, shape.width, shape.channels),
             [&](int32_t tap, int64_t window) {
               const Pack<T, kCount> values = LoadPack<kCount>(dy + window);
               Pack<uint8_t, kCount> chosen;
               if (kMax) chosen = LoadPack<kCount>(taps + window);
#pragma unroll
               for (int j = 0; j < kCount; ++j) {
                 if (!kMax || chosen.at[j] == tap) gradients[j] += ToFloat(values.at[j]);
               }
             });
  if (!kMax) Divide(gradients, shape.divisor);
  PutPack<kCount>(dx + index * kCount, gradients, sum);
}

}  // namespace

template <typename T>
cudaError_t LaunchPool(const PoolShape& shape, const T* x, T* y, uint8_t* taps,
                       cudaStream_t stream) noexcept {
  return WithPackSize<T>(shape.channels, {x, y}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    return ForEach(shape.outputs() / kCount,
                   shape.is_max() ? Pool<true, kCount, T> : Pool<false, kCount, T>, stream, shape,
                   x, y, taps);
  });
}

template <typename T>
cudaError_t LaunchPoolGradient(const PoolShape& shape, const T* dy, const uint8_t* taps, T* dx,
                               bool sum, cudaStream_t stream) noexcept {
  return WithPackSize<T>(shape.channels, {dy, dx}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    return ForEach(shape.inputs() / kCount,
                   shape.is_max() ? PoolGradient<true, kCount, T> : PoolGradient<false, kCount, T>,
                   stream, shape, dy, taps, dx, sum);
  });
}

#define CUDA_OPS_INSTANTIATE(T)                                                                 \
  template cudaError_t LaunchPool(const PoolShape&, const T*, T*, uint8_t*,                     \
                                  cudaStream_t) noexcept;                                       \
  template cudaError_t LaunchPoolGradient(const PoolShape&, const T*, const uint8_t*, T*, bool, \
                                          cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
