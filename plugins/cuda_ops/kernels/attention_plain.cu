#include <cmath>

#include "kernels/attention.h"
#include "kernels/element.h"
#include "kernels/reduce.h"

// A warp owns kRows rows (queries, or keys), which lie in its part of shared memory, and visits
// chunks of 32 rows of the other kind: first a lane is one of those 32, for the scores, then it is
// a column, for what is summed over them. A block has as many warps as its shared memory.
namespace engine::cuda_ops {
namespace {

constexpr int kMaxWarps = 4;
constexpr int kRows = 4;

struct PlainPlace {
  int32_t sample, head, first;  // row of the warp
};

__device__ inline PlainPlace PlaceOfWarp(const AttentionShape& shape) {
  const int32_t tiles = (shape.length + kRows - 1) / kRows;
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
  const int64_t head = warp / tiles;
  return {static_cast<int32_t>(head / shape.heads), static_cast<int32_t>(head % shape.heads),
          static_cast<int32_t>(warp % tiles) * kRows};
}

// The rows of one head: position `row` is at data + row * stride.
template <typename T>
struct PlainRows {
  T* data;
  int64_t stride;

  __device__ T* at(int32_t row) const { return data + row * stride; }
};

template <typename T>
__device__ inline PlainRows<const T> Part(const AttentionShape& shape, const T* qkv,
                                          const PlainPlace& place, QkvPart part) {
  return {qkv + shape.packed_offset(place.sample, place.head, part), shape.packed_width()};
}

template <typename T>
__device__ inline PlainRows<const T> Plain(const AttentionShape& shape, const T* y,
                                           const PlainPlace& place) {
  return {y + shape.row_offset(place.sample, place.head), shape.width()};
}

// `floats` of shared memory for each warp.
__device__ inline float* WarpShared(int floats) {
  return reinterpret_cast<float*>(DynamicShared()) + threadIdx.x / kWarp * floats;
}

__device__ inline int LaneOf() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

// The owned rows, from `first` on, to shared memory, kRows x size; zeros from the length on.
template <typename T>
__device__ inline void Fetch(float* target, const PlainRows<const T>& rows, int32_t first,
                             const AttentionShape& shape) {
  const int size = shape.head_size;
  for (int r = 0; r < kRows; ++r) {
    for (int d = LaneOf(); d < size; d += kWarp) {
      target[r * size + d] = first + r < shape.length ? ToFloat(rows.at(first + r)[d]) : 0.0f;
    }
  }
}

__device__ inline void Clear(float* data, int count) {
  for (int i = LaneOf(); i < count; i += kWarp) data[i] = 0;
}

__device__ inline void Multiply(float* row, float factor, int size) {
#pragma unroll 1  // few elements, and registers are needed
  for (int d = LaneOf(); d < size; d += kWarp) row[d] *= factor;
}

// dots[r] = owned row r * `row`.
template <typename T>
__device__ inline void Dots(float (&dots)[kRows], const float* owned, const T* row, int size) {
  for (int r = 0; r < kRows; ++r) dots[r] = 0;
  for (int d = 0; d < size; ++d) {
    const float value = ToFloat(row[d]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) dots[r] += owned[r * size + d] * value;
  }
}

// sums[r] += the sum over rows [first, first + 32) of weights[r][row - first] * row.
template <typename T>
__device__ inline void AddWeighted(float* sums, const float* weights,
                                   const PlainRows<const T>& rows, int32_t first,
                                   const AttentionShape& shape) {
  const int size = shape.head_size;
  const int32_t left = shape.length - first, count = left < kWarp ? left : kWarp;
  for (int d = LaneOf(); d < size; d += kWarp) {
    float sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = sums[r * size + d];
    for (int j = 0; j < count; ++j) {
      const float value = ToFloat(rows.at(first + j)[d]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] += weights[r * kWarp + j] * value;
    }
    for (int r = 0; r < kRows; ++r) sums[r * size + d] = sum[r];
  }
}

// Writes sums to the rows from `first` on, or adds them.
template <typename T>
__device__ inline void Write(const PlainRows<T>& target, int32_t first, const float* sums, bool add,
                             const AttentionShape& shape) {
  const int size = shape.head_size;
  for (int r = 0; r < kRows && first + r < shape.length; ++r) {
    for (int d = LaneOf(); d < size; d += kWarp) {
      T* const element = target.at(first + r) + d;
      const float value = sums[r * size + d];
      *element = FromFloat<T>(add ? ToFloat(*element) + value : value);
    }
  }
}

__device__ inline bool Sees(const AttentionShape& shape, int32_t query, int32_t key) {
  return query < shape.length && key < shape.length && (!shape.causal || key <= query);
}

// Where the rows of the other kind end that queries from `first` on see.
__device__ inline int32_t KeysEnd(const AttentionShape& shape, int32_t first) {
  return shape.causal && first + kRows < shape.length ? first + kRows : shape.length;
}

// Shared memory of a warp, in floats: owned rows or sums of kRows x size, and weights.
constexpr int WarpFloats(int matrices, int weights, int size) {
  return kRows * (matrices * size + weights * kWarp);
}

template <typename T>
__global__ void PlainForward(AttentionShape shape, float scale, const T* qkv, T* y,
                             float* log_sums) {
  const PlainPlace place = PlaceOfWarp(shape);
  const int size = shape.head_size;
  float* const q = WarpShared(WarpFloats(2, 1, size));
  float* const sums = q + kRows * size;
  float* const weights = sums + kRows * size;
  if (place.sample >= shape.batch) return;
  const PlainRows<const T> k = Part(shape, qkv, place, QkvPart::kKey);
  const PlainRows<const T> v = Part(shape, qkv, place, QkvPart::kValue);
  Fetch(q, Part(shape, qkv, place, QkvPart::kQuery), place.first, shape);
  Clear(sums, kRows * size);
  __syncwarp();
  float largest[kRows], total[kRows];
  for (int r = 0; r < kRows; ++r) {
    largest[r] = -INFINITY;
    total[r] = 0;
  }
  const int32_t keys = KeysEnd(shape, place.first);
  for (int32_t first = 0; first < keys; first += kWarp) {
    const int32_t key = first + LaneOf();
    float scores[kRows];
    Dots(scores, q, k.at(key < shape.length ? key : 0), size);
    for (int r = 0; r < kRows; ++r) {
      // Rows behind the last look at key 0 alone, so that nothing here is infinite.
      const bool seen =
          place.first + r < shape.length ? Sees(shape, place.first + r, key) : key == 0;
      const float score = seen ? scores[r] * scale : -INFINITY;
      const float chunk_largest = WarpReduce(score, MaxFloats());
      const float new_largest = chunk_largest > largest[r] ? chunk_largest : largest[r];
      const float correction = expf(largest[r] - new_largest);
      const float weight = expf(score - new_largest);
      largest[r] = new_largest;
      total[r] = total[r] * correction + WarpReduce(weight, AddNumbers());
      weights[r * kWarp + LaneOf()] = weight;
      Multiply(sums + r * size, correction, size);
    }
    __syncwarp();
    AddWeighted(sums, weights, v, first, shape);
    __syncwarp();
  }
  for (int r = 0; r < kRows; ++r) {
    Multiply(sums + r * size, 1.0f / total[r], size);
    if (log_sums != nullptr && LaneOf() == 0 && place.first + r < shape.length) {
      log_sums[shape.statistics_offset(place.sample, place.head) + place.first + r] =
          largest[r] + logf(total[r]);
    }
  }
  Write(PlainRows<T>{y + shape.row_offset(place.sample, place.head), shape.width()}, place.first,
        sums, false, shape);
}

// delta of the warp's queries, whose dy is in shared memory: the sum over a row of y dy.
template <typename T>
__device__ inline void WriteDeltas(const PlainRows<const T>& y, const float* dy, int32_t first,
                                   const AttentionShape& shape, float* delta) {
  for (int r = 0; r < kRows && first + r < shape.length; ++r) {
    float sum = 0;
    for (int d = LaneOf(); d < shape.head_size; d += kWarp) {
      sum += ToFloat(y.at(first + r)[d]) * dy[r * shape.head_size + d];
    }
    sum = WarpReduce(sum, AddNumbers());
    if (LaneOf() == 0) delta[first + r] = sum;
  }
}

// The gradients of the warp's queries, or (kKeys) of its keys and values: `own` are q and dy, or k
// and v, `other` the two of the other kind. Products of the first two are scores, those of the
// second two the gradients of probabilities. The one for queries writes delta, for both.
template <bool kKeys, typename T>
__global__ void PlainGradients(AttentionShape shape, float scale, AttentionBackwardCall<T> call) {
  constexpr int kTargets = kKeys ? 2 : 1;
  const PlainPlace place = PlaceOfWarp(shape);
  const int size = shape.head_size;
  float* const own = WarpShared(WarpFloats(2 + kTargets, kTargets, size));
  float* const second = own + kRows * size;
  float* const sums = second + kRows * size;
  float* const ds_weights = sums + kTargets * kRows * size;
  float* const p_weights = ds_weights + kRows * kWarp;
  if (place.sample >= shape.batch) return;
  const PlainRows<const T> q = Part(shape, call.qkv, place, QkvPart::kQuery);
  const PlainRows<const T> k = Part(shape, call.qkv, place, QkvPart::kKey);
  const PlainRows<const T> v = Part(shape, call.qkv, place, QkvPart::kValue);
  const PlainRows<const T> dy = Plain(shape, call.dy, place);
  const PlainRows<const T> other = kKeys ? q : k, other_second = kKeys ? dy : v;
  const int64_t statistics = shape.statistics_offset(place.sample, place.head);
  Fetch(own, kKeys ? k : q, place.first, shape);
  Fetch(second, kKeys ? v : dy, place.first, shape);
  Clear(sums, kTargets * kRows * size);
  __syncwarp();
  if (!kKeys) {
    WriteDeltas(Plain(shape, call.y, place), second, place.first, shape, call.delta + statistics);
    __syncwarp();
  }
  const int32_t begin = kKeys && shape.causal ? place.first / kWarp * kWarp : 0;
  const int32_t end = kKeys ? shape.length : KeysEnd(shape, place.first);
  for (int32_t first = begin; first < end; first += kWarp) {
    const int32_t position = first + LaneOf();
    const int32_t row = position < shape.length ? position : 0;
    float scores[kRows], dp[kRows];
    Dots(scores, own, other.at(row), size);
    Dots(dp, second, other_second.at(row), size);
    for (int r = 0; r < kRows; ++r) {
      const int32_t query = kKeys ? position : place.first + r;
      const int32_t key = kKeys ? place.first + r : position;
      float p = 0, ds = 0;
      if (Sees(shape, query, key)) {
        p = expf(scores[r] * scale - call.log_sums[statistics + query]);
        ds = p * (dp[r] - call.delta[statistics + query]) * scale;
      }
      ds_weights[r * kWarp + LaneOf()] = ds;
      if (kKeys) p_weights[r * kWarp + LaneOf()] = p;
    }
    __syncwarp();
    AddWeighted(sums, ds_weights, other, first, shape);
    if (kKeys) AddWeighted(sums + kRows * size, p_weights, other_second, first, shape);
    __syncwarp();
  }
  for (int i = 0; i < kTargets; ++i) {
    const auto part = static_cast<QkvPart>(kKeys ? i + 1 : 0);
    Write(PlainRows<T>{call.dqkv + shape.packed_offset(place.sample, place.head, part),
                       shape.packed_width()},
          place.first, sums + i * kRows * size, call.sum, shape);
  }
}

template <typename Kernel, typename... Arguments>
cudaError_t StartPlain(const AttentionShape& shape, int matrices, int weights, Kernel* kernel,
                       cudaStream_t stream, const Arguments&... arguments) noexcept {
  const auto warp_bytes =
      static_cast<int64_t>(sizeof(float)) * WarpFloats(matrices, weights, shape.head_size);
  int warps = kMaxWarps;
  while (warps * warp_bytes > kSharedLimit) warps /= 2;
  const int64_t tiles = (shape.length + kRows - 1) / kRows;
  return Launch(kernel, dim3(BlocksFor(int64_t{shape.batch} * shape.heads * tiles, warps)),
                dim3(static_cast<unsigned>(warps * kWarp)), static_cast<size_t>(warps * warp_bytes),
                stream, shape, 1.0f / sqrtf(static_cast<float>(shape.head_size)), arguments...);
}

static_assert(WarpFloats(4, 2, kMaxPlainHeadSize) * int64_t{sizeof(float)} <= kSharedLimit,
              "one warp fits for the largest head");

}  // namespace

template <typename T>
cudaError_t LaunchPlainAttentionForward(const AttentionShape& shape, const T* qkv, T* y,
                                        float* log_sums, cudaStream_t stream) noexcept {
  if (int64_t{shape.batch} * shape.length * shape.heads == 0) return cudaSuccess;
  return StartPlain(shape, 2, 1, PlainForward<T>, stream, qkv, y, log_sums);
}

template <typename T>
cudaError_t LaunchPlainAttentionBackward(const AttentionShape& shape,
                                         const AttentionBackwardCall<T>& call,
                                         cudaStream_t stream) noexcept {
  if (int64_t{shape.batch} * shape.length * shape.heads == 0) return cudaSuccess;
  const cudaError_t error = StartPlain(shape, 3, 1, PlainGradients<false, T>, stream, call);
  if (error != cudaSuccess) return error;
  return StartPlain(shape, 4, 2, PlainGradients<true, T>, stream, call);
}

template cudaError_t LaunchPlainAttentionForward(const AttentionShape&, const float*, float*,
                                                 float*, cudaStream_t) noexcept;
template cudaError_t LaunchPlainAttentionForward(const AttentionShape&, const Bf16*, Bf16*, float*,
                                                 cudaStream_t) noexcept;
template cudaError_t LaunchPlainAttentionBackward(const AttentionShape&,
                                                  const AttentionBackwardCall<float>&,
                                                  cudaStream_t) noexcept;
template cudaError_t LaunchPlainAttentionBackward(const AttentionShape&,
                                                  const AttentionBackwardCall<Bf16>&,
                                                  cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
