#include "kernels/channels.h"
#include "kernels/packs.h"

namespace engine::cuda_ops {
namespace {

constexpr int kTile = 32;

template <typename To>
__device__ inline void Put(To* target, float value, bool sum) {
  *target = FromFloat<To>(sum ? ToFloat(*target) + value : value);
}

// An element of y for each thread: what is read or written together is far apart only in the
// matrix that has a small side.
template <typename From, typename To>
__global__ void TransposeElements(const From* x, To* y, int64_t rows, int64_t columns, bool sum,
                                  int64_t count) {
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
__global__ void AddBias(T* y, const T* bias, int64_t channels, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const Pack<T, kCount> own = LoadPack<kCount>(bias + i % (channels / kCount) * kCount);
  float values[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) values[j] = ToFloat(own.at[j]);
  PutPack<kCount>(y + i * kCount, values, true);
}

}  // namespace

template <typename From, typename To>
cudaError_t LaunchTranspose(const From* x, To* y, int64_t batch, int64_t rows, int64_t columns,
                            bool sum, cudaStream_t stream) noexcept {
  const int64_t count = batch * rows * columns;
  if (count == 0) return cudaSuccess;
  if (rows < kTile || columns < kTile) {
    return ForEach(count, TransposeElements<From, To>, stream, x, y, rows, columns, sum);
  }
  const int64_t tiles = ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  return Launch(TransposeTiles<From, To>, dim3(static_cast<unsigned>(batch * tiles)),
                dim3(kTile, 8), 0, stream, x, y, rows, columns, sum);
}

template <typename T>
cudaError_t LaunchAddBias(T* y, const T* bias, int64_t rows, int64_t channels,
                          cudaStream_t stream) noexcept {
  return WithPackSize<T>(channels, {y, bias}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    return ForEach(rows * channels / kCount, AddBias<kCount, T>, stream, y, bias, channels);
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

template cudaError_t LaunchAddBias(float*, const float*, int64_t, int64_t, cudaStream_t) noexcept;
template cudaError_t LaunchAddBias(Bf16*, const Bf16*, int64_t, int64_t, cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
