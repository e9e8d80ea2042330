// Rows that a warp can hold in registers have a warp each (RowOfWarp); others have a block and are
// read again for each pass (RowOfBlock). Both walk their row in the same way: thread t of a row has
// packs t, t + threads, ...
#include <initializer_list>

#include "kernels/layer_norm.h"
#include "kernels/packs.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kWarpsOfBlock = kBlockThreads / kWarp;
constexpr int kMaxHeld = 32;  // elements of a row that one lane holds
// Of the gradient, which needs many registers: as many blocks of four warps as fit.
constexpr int kGradientWarps = 4;
constexpr int kGradientThreads = kGradientWarps * kWarp;
constexpr int kBlocksPerMultiprocessor = 3;
constexpr int kMinRows = 32;  // of one part

// What is normalised: x, or x + addend as it is stored, which is stored.
template <typename T, int kPack>
__device__ void LoadRow(const LayerNormForward<T>& call, int64_t index, float (&values)[kPack]) {
  LoadFloats<kPack>(call.x + index, values);
  if (call.addend == nullptr) return;
  float addend[kPack];
  LoadFloats<kPack>(call.addend + index, addend);
  for (int j = 0; j < kPack; ++j) values[j] = ToFloat(FromFloat<T>(values[j] + addend[j]));
  PutPack<kPack>(call.sum + index, values, false);
}

template <typename T, int kPack>
__device__ void StoreNormalized(const LayerNormForward<T>& call, int64_t row, int64_t column,
                                RowStatistics statistics, const float (&values)[kPack]) {
  float weight[kPack], bias[kPack] = {}, y[kPack];
  LoadFloats<kPack>(call.weight + column, weight);
  if (call.bias != nullptr) LoadFloats<kPack>(call.bias + column, bias);
  for (int j = 0; j < kPack; ++j) {
    y[j] = (values[j] - statistics.mean) * statistics.inverse_deviation * weight[j] + bias[j];
  }
  PutPack<kPack>(call.y + row * call.width + column, y, false);
}

__device__ float InverseDeviation(float squares, int64_t width, float epsilon) {
  return 1.0f / sqrtf(squares / static_cast<float>(width) + epsilon);
}

// Two passes for the statistics, as the difference of two large sums would cancel.
template <typename T, int kPack, int kPacks>
__global__ void ForwardByWarp(const LayerNormForward<T> call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarpsOfBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= call.rows) return;  // the whole warp
  float values[kPacks][kPack] = {};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int column = (i * kWarp + lane) * kPack;
    if (column >= call.width) continue;
    LoadRow<T, kPack>(call, row * call.width + column, values[i]);
    for (int j = 0; j < kPack; ++j) sum += values[i][j];
  }
  RowStatistics statistics;
  sum = call.centred ? WarpReduce(sum, AddNumbers()) : 0.0f;
  statistics.mean = sum / static_cast<float>(call.width);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if ((i * kWarp + lane) * kPack >= call.width) continue;
    for (int j = 0; j < kPack; ++j) {
      const float difference = values[i][j] - statistics.mean;
      squares += difference * difference;
    }
  }
  statistics.inverse_deviation =
      InverseDeviation(WarpReduce(squares, AddNumbers()), call.width, call.epsilon);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int column = (i * kWarp + lane) * kPack;
    if (column < call.width) StoreNormalized<T, kPack>(call, row, column, statistics, values[i]);
  }
  if (lane == 0 && call.statistics != nullptr) call.statistics[row] = statistics;
}

template <typename T, int kPack>
__global__ void ForwardByBlock(const LayerNormForward<T> call) {
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kPack;
  constexpr int64_t kStride = static_cast<int64_t>(kBlockThreads) * kPack;
  const T* const stored = (call.addend == nullptr ? call.x : call.sum) + row * call.width;
  float values[kPack];
  float sum = 0;
  for (int64_t column = begin; column < call.width; column += kStride) {
    LoadRow<T, kPack>(call, row * call.width + column, values);
    for (int j = 0; j < kPack; ++j) sum += values[j];
  }
  RowStatistics statistics;
  sum = call.centred ? BlockReduce(sum, AddNumbers(), 0.0f, scratch) : 0.0f;
  statistics.mean = sum / static_cast<float>(call.width);
  float squares = 0;
  for (int64_t column = begin; column < call.width; column += kStride) {
    LoadFloats<kPack>(stored + column, values);
    for (int j = 0; j < kPack; ++j) {
      const float difference = values[j] - statistics.mean;
      squares += difference * difference;
    }
  }
  statistics.inverse_deviation =
      InverseDeviation(BlockReduce(squares, AddNumbers(), 0.0f, scratch), call.width, call.epsilon);
  for (int64_t column = begin; column < call.width; column += kStride) {
    LoadFloats<kPack>(stored + column, values);
    StoreNormalized<T, kPack>(call, row, column, statistics, values);
  }
  if (threadIdx.x == 0 && call.statistics != nullptr) call.statistics[row] = statistics;
}

// The two means that dx needs of a row.
struct RowMeans {
  float gradient;  // of g
  float slope;     // of g * n
};

// `dsum`: call.dsum at `index`, unless that is null.
template <typename T, int kPack>
__device__ void StoreGradient(const LayerNormBackward<T>& call, int64_t index,
                              RowStatistics statistics, RowMeans means, const float (&n)[kPack],
                              const float (&g)[kPack], const Pack<T, kPack>& dsum) {
  float dx[kPack], before[kPack];
  for (int j = 0; j < kPack; ++j) {
    dx[j] = statistics.inverse_deviation * (g[j] - means.gradient - n[j] * means.slope);
  }
  if (call.dsum != nullptr) {
    for (int j = 0; j < kPack; ++j) dx[j] += ToFloat(dsum.at[j]);
  }
  if (call.sum) {
    LoadFloats<kPack>(call.dx + index, before);
    for (int j = 0; j < kPack; ++j) dx[j] += before[j];
  }
  PutPack<kPack>(call.dx + index, dx, false);
}

// Block b is part b of the rows; its warps take turns. A lane adds up what its columns get.
template <typename T, int kPack, int kPacks>
__global__ void __launch_bounds__(kGradientThreads, kBlocksPerMultiprocessor)
    BackwardByWarp(const LayerNormBackward<T> call) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t part_rows = (call.rows + call.parts - 1) / call.parts;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * part_rows;
  const int64_t end = begin + part_rows < call.rows ? begin + part_rows : call.rows;
  float dweight[kPacks][kPack] = {}, dbias[kPacks][kPack] = {};
  for (int64_t row = begin + warp; row < end; row += kGradientWarps) {
    const RowStatistics statistics = call.statistics[row];
    float n[kPacks][kPack] = {}, g[kPacks][kPack] = {};
    Pack<T, kPack> dsum[kPacks] = {};  // loaded with the others, not when the means are there
    const bool adds = call.dsum != nullptr && call.dx != nullptr;
    float sum = 0, dot = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * kWarp + lane) * kPack;
      if (column >= call.width) continue;
      float weight[kPack];
      LoadFloats<kPack>(call.x + row * call.width + column, n[i]);
      LoadFloats<kPack>(call.dy + row * call.width + column, g[i]);
      LoadFloats<kPack>(call.weight + column, weight);
      if (adds) dsum[i] = LoadPack<kPack>(call.dsum + row * call.width + column);
      for (int j = 0; j < kPack; ++j) {
        n[i][j] = (n[i][j] - statistics.mean) * statistics.inverse_deviation;
        dweight[i][j] += g[i][j] * n[i][j];
        dbias[i][j] += g[i][j];
        g[i][j] *= weight[j];
        sum += call.centred ? g[i][j] : 0.0f;
        dot += g[i][j] * n[i][j];
      }
    }
    if (call.dx == nullptr) continue;
    const auto width = static_cast<float>(call.width);
    const RowMeans means = {WarpReduce(sum, AddNumbers()) / width,
                            WarpReduce(dot, AddNumbers()) / width};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const int column = (i * kWarp + lane) * kPack;
      if (column >= call.width) continue;
      StoreGradient<T, kPack>(call, row * call.width + column, statistics, means, n[i], g[i],
                              dsum[i]);
    }
  }
  if (call.partials == nullptr) return;
  // Of the warps, in their order, a pack of columns at a time.
  __shared__ float sums[2][kGradientWarps][kWarp * kPack];
  float* const target = call.partials + static_cast<int64_t>(blockIdx.x) * 2 * call.width;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const int first = i * kWarp * kPack;
    if (first >= call.width) break;
    for (int j = 0; j < kPack; ++j) {
      sums[0][warp][lane * kPack + j] = dweight[i][j];
      sums[1][warp][lane * kPack + j] = dbias[i][j];
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < 2 * kWarp * kPack; c += kGradientThreads) {
      const int which = c / (kWarp * kPack), column = c % (kWarp * kPack);
      if (first + column >= call.width) continue;
      float total = 0;
      for (int w = 0; w < kGradientWarps; ++w) total += sums[which][w][column];
      target[which * call.width + first + column] = total;
    }
    __syncthreads();
  }
}

// dx alone.
template <typename T, int kPack>
__global__ void InputGradientByBlock(const LayerNormBackward<T> call) {
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x, first = row * call.width;
  const int64_t begin = static_cast<int64_t>(threadIdx.x) * kPack;
  constexpr int64_t kStride = static_cast<int64_t>(kBlockThreads) * kPack;
  const RowStatistics statistics = call.statistics[row];
  float n[kPack], g[kPack], weight[kPack];
  const auto load = [&](int64_t column) {
    LoadFloats<kPack>(call.x + first + column, n);
    LoadFloats<kPack>(call.dy + first + column, g);
    LoadFloats<kPack>(call.weight + column, weight);
    for (int j = 0; j < kPack; ++j) {
      n[j] = (n[j] - statistics.mean) * statistics.inverse_deviation;
      g[j] *= weight[j];
    }
  };
  float sum = 0, dot = 0;
  for (int64_t column = begin; column < call.width; column += kStride) {
    load(column);
    for (int j = 0; j < kPack; ++j) {
      sum += call.centred ? g[j] : 0.0f;
      dot += g[j] * n[j];
    }
  }
  const auto width = static_cast<float>(call.width);
  RowMeans means;
  means.gradient = BlockReduce(sum, AddNumbers(), 0.0f, scratch) / width;
  means.slope = BlockReduce(dot, AddNumbers(), 0.0f, scratch) / width;
  for (int64_t column = begin; column < call.width; column += kStride) {
    load(column);
    Pack<T, kPack> dsum = {};
    if (call.dsum != nullptr) dsum = LoadPack<kPack>(call.dsum + first + column);
    StoreGradient<T, kPack>(call, first + column, statistics, means, n, g, dsum);
  }
}

// The partial sums alone: block (x, y) is 32 columns of part y, a warp of them a row at a time.
template <typename T>
__global__ void ParameterGradientByColumn(const LayerNormBackward<T> call) {
  __shared__ float sums[2][kWarpsOfBlock][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  const int64_t part_rows = (call.rows + call.parts - 1) / call.parts;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * part_rows;
  const int64_t end = begin + part_rows < call.rows ? begin + part_rows : call.rows;
  float dweight = 0, dbias = 0;
  if (column < call.width) {
    for (int64_t row = begin + warp; row < end; row += kWarpsOfBlock) {
      const RowStatistics statistics = call.statistics[row];
      const int64_t index = row * call.width + column;
      const float dy = ToFloat(call.dy[index]);
      dweight += dy * ((ToFloat(call.x[index]) - statistics.mean) * statistics.inverse_deviation);
      dbias += dy;
    }
  }
  sums[0][warp][lane] = dweight;
  sums[1][warp][lane] = dbias;
  __syncthreads();
  if (warp > 1 || column >= call.width) return;  // warp 0 adds up one sum, warp 1 the other
  float total = 0;
  for (int w = 0; w < kWarpsOfBlock; ++w) total += sums[warp][w][lane];
  call.partials[(static_cast<int64_t>(blockIdx.y) * 2 + warp) * call.width + column] = total;
}

// A kernel for rows of `width` elements in packs of kPack, or null where a warp cannot hold one.
template <typename T, int kPack>
auto ForwardKernelFor(int64_t width) -> void (*)(LayerNormForward<T>) {
  if (width <= kWarp * kPack) return ForwardByWarp<T, kPack, 1>;
  if (width <= kWarp * kPack * 2) return ForwardByWarp<T, kPack, 2>;
  if constexpr (kPack * 3 <= kMaxHeld) {
    if (width <= kWarp * kPack * 3) return ForwardByWarp<T, kPack, 3>;
  }
  if (width <= kWarp * kMaxHeld) return ForwardByWarp<T, kPack, kMaxHeld / kPack>;
  return nullptr;
}

template <typename T, int kPack>
auto BackwardKernelFor(int64_t width) -> void (*)(LayerNormBackward<T>) {
  if (width <= kWarp * kPack) return BackwardByWarp<T, kPack, 1>;
  if (width <= kWarp * kPack * 2) return BackwardByWarp<T, kPack, 2>;
  if (width <= kWarp * kPack * 3) return BackwardByWarp<T, kPack, 3>;
  if constexpr (kPack * 6 <= kMaxHeld) {
    if (width <= kWarp * kPack * 6) return BackwardByWarp<T, kPack, 6>;
  }
  return nullptr;
}

template <typename T, int kPack>
cudaError_t LaunchForward(const LayerNormForward<T>& call, cudaStream_t stream) noexcept {
  if (const auto kernel = ForwardKernelFor<T, kPack>(call.width)) {
    return Launch(kernel, dim3(BlocksFor(call.rows, kWarpsOfBlock)), dim3(kBlockThreads), 0, stream,
                  call);
  }
  return Launch(ForwardByBlock<T, kPack>, dim3(static_cast<unsigned>(call.rows)),
                dim3(kBlockThreads), 0, stream, call);
}

template <typename T, int kPack>
cudaError_t LaunchBackward(const LayerNormBackward<T>& call, cudaStream_t stream) noexcept {
  const auto parts = static_cast<unsigned>(call.parts);
  if (const auto kernel = BackwardKernelFor<T, kPack>(call.width)) {
    return Launch(kernel, dim3(parts), dim3(kGradientThreads), 0, stream, call);
  }
  // The sums first: dx may be where dy is.
  if (call.partials != nullptr) {
    const cudaError_t error =
        Launch(ParameterGradientByColumn<T>, dim3(BlocksFor(call.width, kWarp), parts),
               dim3(kBlockThreads), 0, stream, call);
    if (error != cudaSuccess) return error;
  }
  if (call.dx == nullptr) return cudaSuccess;
  return Launch(InputGradientByBlock<T, kPack>, dim3(static_cast<unsigned>(call.rows)),
                dim3(kBlockThreads), 0, stream, call);
}

template <typename T>
bool IsPacked(int64_t width, std::initializer_list<const T*> tensors,
              std::initializer_list<const float*> parameters) {
  bool packed = cuda_ops::IsPacked<T>(width, tensors);
  for (const float* parameter : parameters) {  // a pack of them is up to 32 bytes
    packed = packed && reinterpret_cast<uintptr_t>(parameter) % (4 * kPackSize<T>) == 0;
  }
  return packed;
}

}  // namespace

template <typename T>
cudaError_t LaunchLayerNorm(const LayerNormForward<T>& call, cudaStream_t stream) noexcept {
  if (call.rows == 0) return cudaSuccess;
  return IsPacked<T>(call.width, {call.x, call.addend, call.sum, call.y}, {call.weight, call.bias})
             ? LaunchForward<T, kPackSize<T>>(call, stream)
             : LaunchForward<T, 1>(call, stream);
}

int64_t LayerNormParts(int64_t rows, int32_t multiprocessors) noexcept {
  const int64_t wanted = int64_t{kBlocksPerMultiprocessor} * multiprocessors;
  const int64_t most = (rows + kMinRows - 1) / kMinRows;
  const int64_t parts = wanted < most ? wanted : most;
  return parts < 1 ? 1 : parts;
}

template <typename T>
cudaError_t LaunchLayerNormGradient(const LayerNormBackward<T>& call,
                                    cudaStream_t stream) noexcept {
  if (call.rows == 0 || (call.dx == nullptr && call.partials == nullptr)) return cudaSuccess;
  return IsPacked<T>(call.width, {call.x, call.dy, call.dsum, call.dx}, {call.weight})
             ? LaunchBackward<T, kPackSize<T>>(call, stream)
             : LaunchBackward<T, 1>(call, stream);
}

#define CUDA_OPS_INSTANTIATE(T)                                                            \
  template cudaError_t LaunchLayerNorm(const LayerNormForward<T>&, cudaStream_t) noexcept; \
  template cudaError_t LaunchLayerNormGradient(const LayerNormBackward<T>&, cudaStream_t) noexcept;

CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)

}  // namespace engine::cuda_ops
