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

// A block is kLanes packs wide and works on kRows rows at a time.
constexpr int kLanes = 32, kRows = 8;
constexpr int kMinRows = 64;  // of one part
constexpr int kBlocksPerMultiprocessor = 8;
constexpr int kPartLanes = 16;  // threads that share the parts of one column

// Block (x, y): the columns of tile x, and the rows of part y.
template <typename T, int kPack>
__global__ void ColumnSumsKernel(const T* x, int64_t rows, int64_t width, int64_t part_rows,
                                 float* partials) {
  __shared__ float sums[kRows][kLanes * kPack + 1];
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x) * kPack;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * part_rows;
  const int64_t end = begin + part_rows < rows ? begin + part_rows : rows;
  float own[kPack] = {};
  if (column < width) {
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += kRows) {
      const auto values = *reinterpret_cast<const Pack<T, kPack>*>(x + row * width + column);
      for (int j = 0; j < kPack; ++j) own[j] += ToFloat(values.at[j]);
    }
  }
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
                             int64_t parts, float* target, bool sum, cudaStream_t stream) noexcept {
  const bool packed = IsPacked<T>(width, {x});
  const dim3 grid(BlocksFor(width, kLanes * (packed ? kPackSize<T> : 1)),
                  static_cast<unsigned>(parts));
  const cudaError_t error =
      Launch(packed ? ColumnSumsKernel<T, kPackSize<T>> : ColumnSumsKernel<T, 1>, grid,
             dim3(kLanes, kRows), 0, stream, x, rows, width, (rows + parts - 1) / parts, partials);
  if (error != cudaSuccess) return error;
  return LaunchAddParts(partials, parts, width, width, target, sum, stream);
}

cudaError_t LaunchAddParts(const float* partials, int64_t parts, int64_t stride, int64_t width,
                           float* target, bool sum, cudaStream_t stream) noexcept {
  if (width == 0) return cudaSuccess;
  return Launch(AddPartsKernel, dim3(BlocksFor(width, kWarp)), dim3(kWarp, kPartLanes), 0, stream,
                partials, parts, stride, width, target, sum);
}

template cudaError_t LaunchColumnSums(const float*, int64_t, int64_t, float*, int64_t, float*, bool,
                                      cudaStream_t) noexcept;
template cudaError_t LaunchColumnSums(const Bf16*, int64_t, int64_t, float*, int64_t, float*, bool,
                                      cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
