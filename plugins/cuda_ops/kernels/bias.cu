#include <initializer_list>

#include "kernels/bias.h"
#include "kernels/element.h"
#include "kernels/functions.h"
#include "kernels/launch.h"

namespace engine::cuda_ops {
namespace {

constexpr int kFillThreads = 256;
constexpr int64_t kMaxFillBlocks = 132 * 64;  // more have nothing to do at a time on any device

// A block is kLanes packs wide and works on kRows rows at a time.
constexpr int kLanes = 32, kRows = 8;
constexpr int kMinRows = 64;  // of one part
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kPartLanes = 16;  // threads that share the parts of one column

template <typename T>
__global__ void FillRowsKernel(const T* bias, T* y, int64_t rows, int64_t width) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * width;
       i += stride) {
    y[i] = bias[i % width];
  }
}

// What the sums are of: a pack of row `row` at column `column`.
template <typename T>
struct Stored {
  const T* x;

  template <int kPack>
  __device__ Pack<T, kPack> Get(int64_t index) const {
    return *reinterpret_cast<const Pack<T, kPack>*>(x + index);
  }
};

template <typename T>
struct GeluGradient {
  const T* x;
  const T* dy;
  T* dx;

  template <int kPack>
  __device__ Pack<T, kPack> Get(int64_t index) const {
    const auto read = *reinterpret_cast<const Pack<T, kPack>*>(x + index);
    auto gradient = *reinterpret_cast<const Pack<T, kPack>*>(dy + index);
    for (int j = 0; j < kPack; ++j) {
      gradient.at[j] =
          FromFloat<T>(GeluFunction::Gradient(ToFloat(read.at[j]), ToFloat(gradient.at[j])));
    }
    *reinterpret_cast<Pack<T, kPack>*>(dx + index) = gradient;
    return gradient;
  }
};

// Block (x, y): the columns of tile x, and the rows of part y.
template <typename T, int kPack, typename Source>
__global__ void ColumnSumsKernel(Source source, int64_t rows, int64_t width, int64_t part_rows,
                                 float* partials) {
  __shared__ float sums[kRows][kLanes * kPack + 1];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * kPack;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * part_rows;
  const int64_t end = begin + part_rows < rows ? begin + part_rows : rows;
  float own[kPack] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRows) {
      const Pack<T, kPack> values = source.template Get<kPack>(row * width + column);
      for (int j = 0; j < kPack; ++j) own[j] += ToFloat(values.at[j]);
    }
  }
  if (partials == nullptr) return;
  const int thread = static_cast<int>(threadIdx.x), lane = static_cast<int>(threadIdx.y);
  for (int j = 0; j < kPack; ++j) sums[lane][thread * kPack + j] = own[j];
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLanes * kPack;
  for (int i = lane * kLanes + thread; i < kLanes * kPack; i += kLanes * kRows) {
    if (first + i >= width) continue;
    float total = 0;
    for (int r = 0; r < kRows; ++r) total += sums[r][i];
    partials[static_cast<int64_t>(blockIdx.y) * width + first + i] = total;
  }
}

// Block x: 32 columns. Each of kPartLanes threads adds every kPartLanes-th part.
__global__ void AddPartsKernel(const float* partials, int64_t parts, int64_t stride, int64_t width,
                               float* target, bool sum) {
  __shared__ float sums[kPartLanes][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float own = 0;
  if (column < width) {
    for (int64_t part = threadIdx.y; part < parts; part += kPartLanes) {
      own += partials[part * stride + column];
    }
  }
  sums[threadIdx.y][threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  float total = 0;
  for (int lane = 0; lane < kPartLanes; ++lane) total += sums[lane][threadIdx.x];
  target[column] = sum ? target[column] + total : total;
}

template <typename T, typename Source>
cudaError_t LaunchSums(const Source& source, bool packed, int64_t rows, int64_t width,
                       float* partials, int64_t parts, cudaStream_t stream) noexcept {
  if (rows == 0) return cudaSuccess;
  const int64_t part_rows = (rows + parts - 1) / parts;
  const int64_t pack = packed ? kPackSize<T> : 1;
  const dim3 grid(BlocksFor(width, kLanes * pack), static_cast<unsigned>(parts));
  const auto kernel =
      packed ? ColumnSumsKernel<T, kPackSize<T>, Source> : ColumnSumsKernel<T, 1, Source>;
  return Launch(kernel, grid, dim3(kLanes, kRows), 0, stream, source, rows, width, part_rows,
                partials);
}

}  // namespace

template <typename T>
cudaError_t LaunchFillRows(const T* bias, T* y, int64_t rows, int64_t width,
                           cudaStream_t stream) noexcept {
  if (rows == 0) return cudaSuccess;
  const int64_t wanted = (rows * width + kFillThreads - 1) / kFillThreads;
  const dim3 grid(static_cast<unsigned>(wanted < kMaxFillBlocks ? wanted : kMaxFillBlocks));
  return Launch(FillRowsKernel<T>, grid, dim3(kFillThreads), 0, stream, bias, y, rows, width);
}

int64_t ColumnParts(int64_t rows, int64_t width, int32_t multiprocessors) noexcept {
  // As if the columns were narrow packs: the number does not depend on type or alignment.
  const int64_t tiles = BlocksFor(width, kLanes * 8);
  const int64_t wanted = (int64_t{kBlocksPerMultiprocessor} * multiprocessors + tiles - 1) / tiles;
  const int64_t most = (rows + kMinRows - 1) / kMinRows;
  const int64_t parts = wanted < most ? wanted : most;
  return parts < 1 ? 1 : parts;
}

template <typename T>
cudaError_t LaunchColumnSums(const T* x, int64_t rows, int64_t width, float* partials,
                             int64_t parts, cudaStream_t stream) noexcept {
  return LaunchSums<T>(Stored<T>{x}, IsPacked<T>(width, {x}), rows, width, partials, parts, stream);
}

template <typename T>
cudaError_t LaunchGeluGradient(const T* x, const T* dy, T* dx, int64_t rows, int64_t width,
                               float* partials, int64_t parts, cudaStream_t stream) noexcept {
  return LaunchSums<T>(GeluGradient<T>{x, dy, dx}, IsPacked<T>(width, {x, dy, dx}), rows, width,
                       partials, parts, stream);
}

cudaError_t LaunchAddParts(const float* partials, int64_t parts, int64_t stride, int64_t width,
                           float* target, bool sum, cudaStream_t stream) noexcept {
  if (width == 0) return cudaSuccess;
  return Launch(AddPartsKernel, dim3(BlocksFor(width, kWarp)), dim3(kWarp, kPartLanes), 0, stream,
                partials, parts, stride, width, target, sum);
}

#define CUDA_OPS_INSTANTIATE(T)                                                               \
  template cudaError_t LaunchFillRows(const T*, T*, int64_t, int64_t, cudaStream_t) noexcept; \
  template cudaError_t LaunchColumnSums(const T*, int64_t, int64_t, float*, int64_t,          \
                                        cudaStream_t) noexcept;                               \
  template cudaError_t LaunchGeluGradient(const T*, const T*, T*, int64_t, int64_t, float*,   \
                                          int64_t, cudaStream_t) noexcept;

CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)

}  // namespace engine::cuda_ops
