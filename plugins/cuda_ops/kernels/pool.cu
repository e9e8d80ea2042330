#include "kernels/packs.h"
#include "kernels/pool.h"

namespace engine::cuda_ops {
namespace {

struct Range {
  int32_t begin, end;
};

__device__ inline int64_t OriginOf(const PoolAxis& axis, int64_t output) {
  return output * axis.stride - axis.before;
}

// The taps of the window at `output` that are on the axis.
__device__ inline Range TapsAt(const PoolAxis& axis, int64_t output) {
  const auto origin = static_cast<int32_t>(OriginOf(axis, output));
  const auto left = static_cast<int32_t>(axis.inputs) - origin;
  const int32_t end = left <= 0 ? 0 : (left - 1) / axis.dilation + 1;
  return {origin < 0 ? (axis.dilation - 1 - origin) / axis.dilation : 0,
          end < axis.kernel ? end : axis.kernel};
}

// The windows of an axis that may have a tap at `input`.
__device__ inline Range WindowsAt(const PoolAxis& axis, int64_t input) {
  const int64_t last = input + axis.before;
  const int64_t before = last - int64_t{axis.kernel - 1} * axis.dilation;
  const int64_t end = last / axis.stride + 1;
  return {before <= 0 ? 0 : static_cast<int32_t>((before + axis.stride - 1) / axis.stride),
          static_cast<int32_t>(end < axis.outputs ? end : axis.outputs)};
}

// The tap of the window at `output` that is at `input`, one of WindowsAt; -1: none.
__device__ inline int32_t TapOf(const PoolAxis& axis, int64_t output, int64_t input) {
  const auto distance = static_cast<int32_t>(input - OriginOf(axis, output));
  return distance % axis.dilation == 0 ? distance / axis.dilation : -1;
}

// What the mean of a window is divided by.
__device__ inline float DivisorOf(const PoolAxis& axis, int64_t output, bool padded) {
  if (!padded) {
    const Range taps = TapsAt(axis, output);
    return static_cast<float>(taps.end - taps.begin);
  }
  const int64_t left = axis.inputs + axis.after - OriginOf(axis, output);
  return static_cast<float>(left < axis.kernel ? left : axis.kernel);
}
__device__ inline float DivisorOf(const PoolShape& shape, int64_t row, int64_t column) {
  const bool padded = shape.kind == PoolKind::kMeanOfPadded;
  return DivisorOf(shape.rows, row, padded) * DivisorOf(shape.columns, column, padded);
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
  const Range rows = TapsAt(shape.rows, at.y), columns = TapsAt(shape.columns, at.x);
  for (int32_t i = rows.begin; i < rows.end; ++i) {
    const int64_t row = at.sample * shape.rows.inputs + OriginOf(shape.rows, at.y) +
                        int64_t{i} * shape.rows.dilation;
    for (int32_t j = columns.begin; j < columns.end; ++j) {
      const int64_t column = OriginOf(shape.columns, at.x) + int64_t{j} * shape.columns.dilation;
      body(i * shape.columns.kernel + j,
           (row * shape.columns.inputs + column) * shape.channels + at.channel);
    }
  }
}

// Calls body(tap number, index in y, divisor of a mean) for the windows that have the input at `at`.
template <bool kMax, int kCount, typename Body>
__device__ inline void ForWindows(const PoolShape& shape, const Place<kCount>& at,
                                  const Body& body) {
  const Range rows = WindowsAt(shape.rows, at.y), columns = WindowsAt(shape.columns, at.x);
  for (int32_t i = rows.begin; i < rows.end; ++i) {
    const int32_t tap_row = TapOf(shape.rows, i, at.y);
    for (int32_t j = columns.begin; j < columns.end; ++j) {
      const int32_t tap_column = TapOf(shape.columns, j, at.x);
      if (tap_row < 0 || tap_column < 0) continue;
      const int64_t window = (at.sample * shape.rows.outputs + i) * shape.columns.outputs + j;
      body(tap_row * shape.columns.kernel + tap_column, window * shape.channels + at.channel,
           kMax ? 1.0f : DivisorOf(shape, i, j));
    }
  }
}

// The largest of each window, and its tap, or the mean.
template <bool kMax, int kCount, typename Tap, typename T>
__global__ void Pool(PoolShape shape, const T* x, T* y, Tap* taps, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const Place<kCount> place(index, shape.rows.outputs, shape.columns.outputs, shape.channels);
  float results[kCount] = {};
  Pack<Tap, kCount> chosen = {};
  bool first = true;
  ForTaps(shape, place, [&](int32_t tap, int64_t from) {
    const Pack<T, kCount> values = LoadPack<kCount>(x + from);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float value = ToFloat(values.at[j]), before = results[j];
      const bool keeps = kMax && !first && (value <= before || before != before);
      if (keeps) continue;
      results[j] = kMax ? value : before + value;
      chosen.at[j] = static_cast<Tap>(tap);
    }
    first = false;
  });
  if (!kMax) {
    const float divisor = DivisorOf(shape, place.y, place.x);
#pragma unroll
    for (int j = 0; j < kCount; ++j) results[j] /= divisor;
  }
  PutPack<kCount>(y + index * kCount, results, false);
  if (kMax && taps != nullptr) StorePack(taps + index * kCount, chosen);
}

template <bool kMax, int kCount, typename Tap, typename T>
__global__ void PoolGradient(PoolShape shape, const T* dy, const Tap* taps, T* dx, bool sum,
                             int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float gradients[kCount] = {};
  ForWindows<kMax>(
      shape, Place<kCount>(index, shape.rows.inputs, shape.columns.inputs, shape.channels),
      [&](int32_t tap, int64_t window, float divisor) {
        const Pack<T, kCount> values = LoadPack<kCount>(dy + window);
        Pack<Tap, kCount> chosen;
        if (kMax) chosen = LoadPack<kCount>(taps + window);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          if (kMax && chosen.at[j] != tap) continue;
          gradients[j] += kMax ? ToFloat(values.at[j]) : ToFloat(values.at[j]) / divisor;
        }
      });
  PutPack<kCount>(dx + index * kCount, gradients, sum);
}

// Calls function(number of channels at a time as an integral_constant, a tap).
template <typename T, typename Function>
cudaError_t WithForms(const PoolShape& shape, std::initializer_list<const T*> tensors,
                      const Function& function) noexcept {
  return WithPackSize<T>(shape.channels, tensors, [&](auto pack) {
    return shape.tap_bytes() == 1 ? function(pack, uint8_t{}) : function(pack, int32_t{});
  });
}

}  // namespace

template <typename T>
cudaError_t LaunchPool(const PoolShape& shape, const T* x, T* y, void* taps,
                       cudaStream_t stream) noexcept {
  return WithForms<T>(shape, {x, y}, [&](auto pack, auto tap) {
    constexpr int kCount = decltype(pack)::value;
    using Tap = decltype(tap);
    return ForEach(shape.outputs() / kCount,
                   shape.is_max() ? Pool<true, kCount, Tap, T> : Pool<false, kCount, Tap, T>,
                   stream, shape, x, y, static_cast<Tap*>(taps));
  });
}

template <typename T>
cudaError_t LaunchPoolGradient(const PoolShape& shape, const T* dy, const void* taps, T* dx,
                               bool sum, cudaStream_t stream) noexcept {
  return WithForms<T>(shape, {dy, dx}, [&](auto pack, auto tap) {
    constexpr int kCount = decltype(pack)::value;
    using Tap = decltype(tap);
    return ForEach(
        shape.inputs() / kCount,
        shape.is_max() ? PoolGradient<true, kCount, Tap, T> : PoolGradient<false, kCount, Tap, T>,
        stream, shape, dy, static_cast<const Tap*>(taps), dx, sum);
  });
}

#define CUDA_OPS_INSTANTIATE(T)                                                                  \
  template cudaError_t LaunchPool(const PoolShape&, const T*, T*, void*, cudaStream_t) noexcept; \
  template cudaError_t LaunchPoolGradient(const PoolShape&, const T*, const void*, T*, bool,     \
                                          cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
