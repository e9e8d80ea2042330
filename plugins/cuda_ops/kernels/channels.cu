#include "kernels/channel_packs.h"
#include "kernels/channels.h"

namespace engine::cuda_ops {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;

__device__ inline int64_t ThreadIndex() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

template <typename To>
__device__ inline void Put(To* target, float value, bool sum) {
  *target = FromFloat<To>(sum ? ToFloat(*target) + value : value);
}

// An element of y for each thread: what is read or written together is far apart only in the
// matrix that has a small side.
template <typename From, typename To>
__global__ void TransposeElements(const From* x, To* y, int64_t count, int64_t rows,
                                  int64_t columns, bool sum) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const int64_t row = i % rows, column = i / rows % columns;
  const int64_t matrix = i / (rows * columns) * (rows * columns);
  Put(y + i, ToFloat(x[matrix + row * columns + column]), sum);
}

// A block of kTile x 8 threads moves a tile of kTile x kTile elements through shared memory.
template <typename From, typename To>
__global__ void TransposeTiles(const From* x, To* y, int64_t rows, int64_t columns, bool sum) {
  __shared__ float tile[kTile][kTile + 1];
  const int64_t tile_columns = (columns + kTile - 1) / kTile;
  const int64_t tile_rows = (rows + kTile - 1) / kTile;
  const int64_t index = blockIdx.x;
  const int64_t matrix = index / (tile_columns * tile_rows) * (rows * columns);
  const int64_t first_row = index / tile_columns % tile_rows * kTile;
  const int64_t first_column = index % tile_columns * kTile;
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = static_cast<int>(threadIdx.y); i < kTile; i += static_cast<int>(blockDim.y)) {
    const int64_t row = first_row + i, column = first_column + lane;
    if (row < rows && column < columns) tile[i][lane] = ToFloat(x[matrix + row * columns + column]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < kTile; i += static_cast<int>(blockDim.y)) {
    const int64_t row = first_row + lane, column = first_column + i;
    if (row < rows && column < columns) Put(y + matrix + column * rows + row, tile[lane][i], sum);
  }
}

// `count` packs of kCount channels.
template <int kCount, typename T>
__global__ void AddBias(T* y, const T* bias, int64_t count, int64_t channels) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const Pack<T, kCount> own = LoadPack<kCount>(bias + i % (channels / kCount) * kCount);
  float values[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = ToFloat(own.at[j]);
  PutPack<kCount>(y + i * kCount, values, true);
}

constexpr int kMeanRows = 8;

// A block of 32 x kMeanRows threads: 32 channels of a sample, each with kMeanRows partial sums.
template <typename T>
__global__ void PositionMeans(const T* x, T* y, int64_t positions, int64_t channels) {
  __shared__ float sums[kMeanRows][kWarp];
  const int64_t channel_blocks = (channels + kWarp - 1) / kWarp;
  const int64_t sample = blockIdx.x / channel_blocks;
  const int64_t channel = blockIdx.x % channel_blocks * kWarp + threadIdx.x;
  float sum = 0;
  if (channel < channels) {
    for (int64_t p = threadIdx.y; p < positions; p += kMeanRows) {
      sum += ToFloat(x[(sample * positions + p) * channels + channel]);
    }
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int i = 1; i < kMeanRows; ++i) sum += sums[i][threadIdx.x];
  y[sample * channels + channel] = FromFloat<T>(sum / static_cast<float>(positions));
}

template <int kCount, typename T>
__global__ void PositionMeansGradient(const T* dy, T* dx, int64_t count, int64_t positions,
                                      int64_t channels, float share, bool sum) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const int64_t packs = channels / kCount;
  const int64_t channel = i % packs * kCount, sample = i / (positions * packs);
  const Pack<T, kCount> gradients = LoadPack<kCount>(dy + sample * channels + channel);
  float values[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = ToFloat(gradients.at[j]) * share;
  PutPack<kCount>(dx + i * kCount, values, sum);
}

}  // namespace

template <typename From, typename To>
cudaError_t LaunchTranspose(const From* x, To* y, int64_t batch, int64_t rows, int64_t columns,
                            bool sum, cudaStream_t stream) noexcept {
  const int64_t count = batch * rows * columns;
  if (count == 0) return cudaSuccess;
  if (rows < kTile || columns < kTile) {
    return Launch(TransposeElements<From, To>, dim3(BlocksFor(count, kThreads)), dim3(kThreads), 0,
                  stream, x, y, count, rows, columns, sum);
  }
  const int64_t tiles = ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  return Launch(TransposeTiles<From, To>, dim3(static_cast<unsigned>(batch * tiles)),
                dim3(kTile, 8), 0, stream, x, y, rows, columns, sum);
}

template <typename T>
cudaError_t LaunchAddBias(T* y, const T* bias, int64_t rows, int64_t channels,
                          cudaStream_t stream) noexcept {
  if (rows * channels == 0) return cudaSuccess;
  return WithPackSize<T>(channels, {y, bias}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    const int64_t count = rows * channels / kCount;
    return Launch(AddBias<kCount, T>, dim3(BlocksFor(count, kThreads)), dim3(kThreads), 0, stream,
                  y, bias, count, channels);
  });
}

template <typename T>
cudaError_t LaunchPositionMeans(const T* x, T* y, int64_t samples, int64_t positions,
                                int64_t channels, cudaStream_t stream) noexcept {
  if (samples == 0) return cudaSuccess;
  const int64_t blocks = samples * ((channels + kWarp - 1) / kWarp);
  return Launch(PositionMeans<T>, dim3(static_cast<unsigned>(blocks)), dim3(kWarp, kMeanRows), 0,
                stream, x, y, positions, channels);
}

template <typename T>
cudaError_t LaunchPositionMeansGradient(const T* dy, T* dx, int64_t samples, int64_t positions,
                                        int64_t channels, bool sum, cudaStream_t stream) noexcept {
  if (samples * positions * channels == 0) return cudaSuccess;
  return WithPackSize<T>(channels, {dy, dx}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    const int64_t count = samples * positions * channels / kCount;
    return Launch(PositionMeansGradient<kCount, T>, dim3(BlocksFor(count, kThreads)),
                  dim3(kThreads), 0, stream, dy, dx, count, positions, channels,
                  1.0f / static_cast<float>(positions), sum);
  });
}

#define CUDA_OPS_INSTANTIATE_PAIR(From, To)                                               \
  template cudaError_t LaunchTranspose(const From*, To*, int64_t, int64_t, int64_t, bool, \
                                       cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE_PAIR(float, float)
CUDA_OPS_INSTANTIATE_PAIR(float, Bf16)
CUDA_OPS_INSTANTIATE_PAIR(Bf16, float)
CUDA_OPS_INSTANTIATE_PAIR(Bf16, Bf16)
#undef CUDA_OPS_INSTANTIATE_PAIR

#define CUDA_OPS_INSTANTIATE(T)                                                                   \
  template cudaError_t LaunchAddBias(T*, const T*, int64_t, int64_t, cudaStream_t) noexcept;      \
  template cudaError_t LaunchPositionMeans(const T*, T*, int64_t, int64_t, int64_t,               \
                                           cudaStream_t) noexcept;                                \
  template cudaError_t LaunchPositionMeansGradient(const T*, T*, int64_t, int64_t, int64_t, bool, \
                                                   cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
