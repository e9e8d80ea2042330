#include "kernels/element.h"
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

// An element of a tensor (samples, height, width, channels).
struct Place {
  int64_t sample, y, x, channel;

  __device__ Place(int64_t index, int64_t height, int64_t width, int64_t channels)
      : sample(index / (channels * width * height)),
        y(index / (channels * width) % height),
        x(index / channels % width),
        channel(index % channels) {}
};

// Calls body(tap number, index in x) for the taps of the window at `at`.
template <typename Body>
__device__ inline void ForTaps(const PoolShape& shape, const Place& at, const Body& body) {
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
template <typename Body>
__device__ inline void ForWindows(const PoolShape& shape, const Place& at, const Body& body) {
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

template <typename T>
__device__ inline void Put(T* target, float value, bool sum) {
  *target = FromFloat<T>(sum ? ToFloat(*target) + value : value);
}

template <typename T>
__global__ void MaxPool(PoolShape shape, const T* x, T* y, uint8_t* taps, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float largest = 0;
  int32_t chosen = -1;
  ForTaps(shape, Place(index, shape.output_height, shape.output_width, shape.channels),
          [&](int32_t tap, int64_t from) {
            const float value = ToFloat(x[from]);
            const bool keep = chosen >= 0 && (value <= largest || largest != largest);
            largest = keep ? largest : value;
            chosen = keep ? chosen : tap;
          });
  y[index] = FromFloat<T>(largest);
  if (taps != nullptr) taps[index] = static_cast<uint8_t>(chosen);
}

template <typename T>
__global__ void MaxPoolGradient(PoolShape shape, const T* dy, const uint8_t* taps, T* dx, bool sum,
                                int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float gradient = 0;
  ForWindows(shape, Place(index, shape.height, shape.width, shape.channels),
             [&](int32_t tap, int64_t window) {
               if (taps[window] == tap) gradient += ToFloat(dy[window]);
             });
  Put(dx + index, gradient, sum);
}

template <typename T>
__global__ void AvgPool(PoolShape shape, const T* x, T* y, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float total = 0;
  ForTaps(shape, Place(index, shape.output_height, shape.output_width, shape.channels),
          [&](int32_t, int64_t from) { total += ToFloat(x[from]); });
  y[index] = FromFloat<T>(total / static_cast<float>(shape.kernel * shape.kernel));
}

template <typename T>
__global__ void AvgPoolGradient(PoolShape shape, const T* dy, T* dx, bool sum, int64_t count) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  float total = 0;
  ForWindows(shape, Place(index, shape.height, shape.width, shape.channels),
             [&](int32_t, int64_t window) { total += ToFloat(dy[window]); });
  Put(dx + index, total / static_cast<float>(shape.kernel * shape.kernel), sum);
}

// A thread for each of `count` elements.
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
  return ForEach(shape.outputs(), MaxPool<T>, stream, shape, x, y, taps);
}

template <typename T>
cudaError_t LaunchMaxPoolGradient(const PoolShape& shape, const T* dy, const uint8_t* taps, T* dx,
                                  bool sum, cudaStream_t stream) noexcept {
  return ForEach(shape.inputs(), MaxPoolGradient<T>, stream, shape, dy, taps, dx, sum);
}

template <typename T>
cudaError_t LaunchAvgPool(const PoolShape& shape, const T* x, T* y, cudaStream_t stream) noexcept {
  return ForEach(shape.outputs(), AvgPool<T>, stream, shape, x, y);
}

template <typename T>
cudaError_t LaunchAvgPoolGradient(const PoolShape& shape, const T* dy, T* dx, bool sum,
                                  cudaStream_t stream) noexcept {
  return ForEach(shape.inputs(), AvgPoolGradient<T>, stream, shape, dy, dx, sum);
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
