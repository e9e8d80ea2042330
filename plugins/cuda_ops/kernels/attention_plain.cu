#include <cmath>

#include "kernels/attention_plain.h"
#include "kernels/element.h"
#include "kernels/reduce.h"

// A warp owns kRows rows (queries, or keys), which lie in its part of shared memory, and visits
// chunks of 32 rows of the other kind: first a lane is one of those 32, for the scores, then it is
// a column, for what is summed over them.
namespace engine::cuda_ops {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 4;

struct PlainPlace {
  int32_t sample, head, first;  // row of the warp
};

__device__ inline PlainPlace PlaceOfWarp(const AttentionShape& shape, int rows) {
  const int32_t tiles = (shape.length + rows - 1) / rows;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const int64_t head = warp / tiles;
  return {static_cast<int32_t>(head / shape.heads), static_cast<int32_t>(head % shape.heads),
          static_cast<int32_t>(warp % tiles) * rows};
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

// Rows [first, first + kCount) to shared memory, kCount x size; zeros from `limit` on.
template <int kCount, typename T>
__device__ inline void Fetch(float* target, const PlainRows<const T>& rows, int32_t first,
                             const AttentionShape& shape) {
  const int size = shape.head_size;
  for (int r = 0; r < kCount; ++r) {
    for (int d = LaneOf(); d < size; d += kWarp) {
      target[r * size + d] = first + r < shape.length ? ToFloat(rows.at(first + r)[d]) : 0.0f;
    }
  }
}

template <int kCount>
__device__ inline void Fill(float* target, int count) {
  for (int i = LaneOf(); i < kCount * count; i += kWarp) target[i] = 0;
}

// dots[r] = owned row r * `row`.
template <int kCount, typename T>
__device__ inline void Dots(float (&dots)[kCount], const float* owned, const T* row, int size) {
  for (int r = 0; r < kCount; ++r) dots[r] = 0;
  for (int d = 0; d < size; ++d) {
    const float value = ToFloat(row[d]);
#pragma unroll
    for (int r = 0; r < kCount; ++r) dots[r] += owned[r * size + d] * value;
  }
}

// sums[r] += the sum over rows [first, first + count) of weights[r][row - first] * row.
template <int kCount, typename T>
__device__ inline void AddWeighted(float* sums, const float* weights,
                                   const PlainRows<const T>& rows, int32_t first, int count,
                                   int size) {
  for (int d = LaneOf(); d < size; d += kWarp) {
    float sum[kCount];
    for (int r = 0; r < kCount; ++r) sum[r] = sums[r * size + d];
    for (int j = 0; j < count; ++j) {
      const float value = ToFloat(rows.at(first + j)[d]);
#pragma unroll
      for (int r = 0; r < kCount; ++r) sum[r] += weights[r * kWarp + j] * value;
    }
    for (int r = 0; r < kCount; ++r) sums[r * size + d] = sum[r];
  }
}

// Writes factor * sums to rows of T, or adds it.
template <int kCount, typename T>
__device__ inline void Write(const PlainRows<T>& target, int32_t first, const float* sums,
                             const float (&factors)[kCount], bool add,
                             const AttentionShape& shape) {
  const int size = shape.head_size;
  for (int r = 0; r < kCount && first + r < shape.length; ++r) {
    for (int d = LaneOf(); d < size; d += kWarp) {
      const float value = factors[r] * sums[r * size + d];
      T* const element = target.at(first + r) + d;
      *element = FromFloat<T>(add ? ToFloat(*element) + value : value);
    }
  }
}

__device__ inline bool Sees(const AttentionShape& shape, int32_t query, int32_t key) {
  return query < shape.length && key < shape.length && (!shape.causal || key <= query);
}

__device__ inline int32_t ChunkRows(const AttentionShape& shape, int32_t first) {
  return shape.length - first < kWarp ? shape.length - first : kWarp;
}

// Shared memory of a warp, in floats: owned rows and sums of `rows` x size, and weights.
constexpr int64_t WarpFloats(int matrices, int weights, int64_t rows, int64_t size) {
  return rows * (matrices * size + weights * kWarp);
}

template <int kCount, typename T>
__global__ void PlainForward(AttentionShape shape, float scale, const T* qkv, T* y,
                             float* log_sums) {
  const PlainPlace place = PlaceOfWarp(shape, kCount);
  const int size = shape.head_size;
  float* const q = WarpShared(static_cast<int>(WarpFloats(2, 1, kCount, size)));
  float* const sums = q + kCount * size;
  float* const weights = sums + kCount * size;
  if (place.sample >= shape.batch) return;
  const PlainRows<const T> k = Part(shape, qkv, place, QkvPart::kKey);
  const PlainRows<const T> v = Part(shape, qkv, place, QkvPart::kValue);
  Fetch<kCount>(q, Part(shape, qkv, place, QkvPart::kQuery), place.first, shape);
  Fill<kCount>(sums, size);
  __syncwarp();
  float largest[kCount], total[kCount];
  for (int r = 0; r < kCount; ++r) {
    largest[r] = -INFINITY;
    total[r] = 0;
  }
  const int32_t last = place.first + kCount < shape.length ? place.first + kCount : shape.length;
  const int32_t keys = shape.causal ? last : shape.length;
  for (int32_t first = 0; first < keys; first += kWarp) {
    const int32_t key = first + LaneOf();
    float scores[kCount];
    Dots<kCount>(scores, q, k.at(key < shape.length ? key : 0), size);
    for (int r = 0; r < kCount; ++r) {
      // Rows behind the last look at key 0 alone, so that nothing here is infinite.
      const bool seen =
          place.first + r < shape.length ? Sees(shape, place.first + r, key) : key == 0;
      const float score = seen ? scores[r] * scale : -INFINITY;
      const float chunk_largest = WarpReduce(score, MaxFloats());
      const float new_largest = chunk_largest > largest[r] ? chunk_largest : largest[r];
      const float correction = expf(largest[r] - new_largest);
      const float weight = expf(score - new_largest);
      largest[r] = new_largest;
      total[r] = total[r] * correction + WarpReduce(weight, AddFloats());
      weights[r * kWarp + LaneOf()] = weight;
      for (int d = LaneOf(); d < size; d += kWarp) sums[r * size + d] *= correction;
    }
    __syncwarp();
    AddWeighted<kCount>(sums, weights, v, first, ChunkRows(shape, first), size);
    __syncwarp();
  }
  float shares[kCount];
  for (int r = 0; r < kCount; ++r) {
    shares[r] = 1.0f / total[r];
    if (log_sums != nullptr && LaneOf() == 0 && place.first + r < shape.length) {
      log_sums[shape.statistics_offset(place.sample, place.head) + place.first + r] =
          largest[r] + logf(total[r]);
    }
  }
  Write<kCount>(PlainRows<T>{y + shape.row_offset(place.sample, place.head), shape.width()},
                place.first, sums, shares, false, shape);
}

// delta = sum over a row of y dy: a warp for each row of (batch, length, heads).
template <typename T>
__global__ void PlainRowDots(AttentionShape shape, const T* y, const T* dy, float* delta) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= int64_t{shape.batch} * shape.length * shape.heads) return;
  float sum = 0;
  for (int d = LaneOf(); d < shape.head_size; d += kWarp) {
    sum += ToFloat(y[row * shape.head_size + d]) * ToFloat(dy[row * shape.head_size + d]);
  }
  sum = WarpReduce(sum, AddFloats());
  if (LaneOf() != 0) return;
  const int64_t position = row / shape.heads;
  delta[shape.statistics_offset(static_cast<int32_t>(position / shape.length),
                                static_cast<int32_t>(row % shape.heads)) +
        position % shape.length] = sum;
}

// The warp's rows are queries.
template <int kCount, typename T>
__global__ void PlainQueryGradients(AttentionShape shape, float scale,
                                    AttentionBackwardCall<T> call) {
  const PlainPlace place = PlaceOfWarp(shape, kCount);
  const int size = shape.head_size;
  float* const q = WarpShared(static_cast<int>(WarpFloats(3, 1, kCount, size)));
  float* const dy = q + kCount * size;
  float* const dq = dy + kCount * size;
  float* const weights = dq + kCount * size;
  if (place.sample >= shape.batch) return;
  const PlainRows<const T> k = Part(shape, call.qkv, place, QkvPart::kKey);
  const PlainRows<const T> v = Part(shape, call.qkv, place, QkvPart::kValue);
  const int64_t statistics = shape.statistics_offset(place.sample, place.head) + place.first;
  Fetch<kCount>(q, Part(shape, call.qkv, place, QkvPart::kQuery), place.first, shape);
  Fetch<kCount>(dy, Plain(shape, call.dy, place), place.first, shape);
  Fill<kCount>(dq, size);
  __syncwarp();
  const int32_t last = place.first + kCount < shape.length ? place.first + kCount : shape.length;
  const int32_t keys = shape.causal ? last : shape.length;
  for (int32_t first = 0; first < keys; first += kWarp) {
    const int32_t key = first + LaneOf();
    const int32_t row = key < shape.length ? key : 0;
    float scores[kCount], dp[kCount];
    Dots<kCount>(scores, q, k.at(row), size);
    Dots<kCount>(dp, dy, v.at(row), size);
    for (int r = 0; r < kCount; ++r) {
      float ds = 0;
      if (Sees(shape, place.first + r, key)) {
        const float p = expf(scores[r] * scale - call.log_sums[statistics + r]);
        ds = p * (dp[r] - call.delta[statistics + r]);
      }
      weights[r * kWarp + LaneOf()] = ds;
    }
    __syncwarp();
    AddWeighted<kCount>(dq, weights, k, first, ChunkRows(shape, first), size);
    __syncwarp();
  }
  float factors[kCount];
  for (int r = 0; r < kCount; ++r) factors[r] = scale;
  Write<kCount>(
      PlainRows<T>{call.dqkv + shape.packed_offset(place.sample, place.head, QkvPart::kQuery),
                   shape.packed_width()},
      place.first, dq, factors, call.sum, shape);
}

// The warp's rows are keys.
template <int kCount, typename T>
__global__ void PlainKeyGradients(AttentionShape shape, float scale,
                                  AttentionBackwardCall<T> call) {
  const PlainPlace place = PlaceOfWarp(shape, kCount);
  const int size = shape.head_size;
  float* const k = WarpShared(static_cast<int>(WarpFloats(4, 2, kCount, size)));
  float* const v = k + kCount * size;
  float* const dk = v + kCount * size;
  float* const dv = dk + kCount * size;
  float* const p_weights = dv + kCount * size;
  float* const ds_weights = p_weights + kCount * kWarp;
  if (place.sample >= shape.batch) return;
  const PlainRows<const T> q = Part(shape, call.qkv, place, QkvPart::kQuery);
  const PlainRows<const T> dy = Plain(shape, call.dy, place);
  const int64_t statistics = shape.statistics_offset(place.sample, place.head);
  Fetch<kCount>(k, Part(shape, call.qkv, place, QkvPart::kKey), place.first, shape);
  Fetch<kCount>(v, Part(shape, call.qkv, place, QkvPart::kValue), place.first, shape);
  Fill<kCount>(dk, size);
  Fill<kCount>(dv, size);
  __syncwarp();
  for (int32_t first = shape.causal ? place.first / kWarp * kWarp : 0; first < shape.length;
       first += kWarp) {
    const int32_t query = first + LaneOf();
    const int32_t row = query < shape.length ? query : 0;
    float scores[kCount], dp[kCount];
    Dots<kCount>(scores, k, q.at(row), size);
    Dots<kCount>(dp, v, dy.at(row), size);
    for (int r = 0; r < kCount; ++r) {
      float p = 0, ds = 0;
      if (Sees(shape, query, place.first + r)) {
        p = expf(scores[r] * scale - call.log_sums[statistics + query]);
        ds = p * (dp[r] - call.delta[statistics + query]);
      }
      p_weights[r * kWarp + LaneOf()] = p;
      ds_weights[r * kWarp + LaneOf()] = ds;
    }
    __syncwarp();
    AddWeighted<kCount>(dv, p_weights, dy, first, ChunkRows(shape, first), size);
    AddWeighted<kCount>(dk, ds_weights, q, first, ChunkRows(shape, first), size);
    __syncwarp();
  }
  float scales[kCount], ones[kCount];
  for (int r = 0; r < kCount; ++r) {
    scales[r] = scale;
    ones[r] = 1;
  }
  T* const dkeys = call.dqkv + shape.packed_offset(place.sample, place.head, QkvPart::kKey);
  Write<kCount>(PlainRows<T>{dkeys, shape.packed_width()}, place.first, dk, scales, call.sum,
                shape);
  Write<kCount>(PlainRows<T>{dkeys + shape.width(), shape.packed_width()}, place.first, dv, ones,
                call.sum, shape);
}

// Starts one of two instances of a kernel: that of kRows rows a warp, or, where those take too much
// shared memory, that of one.
template <typename Kernel, typename... Arguments>
cudaError_t StartPlain(const AttentionShape& shape, int matrices, int weights, Kernel* several,
                       Kernel* one, cudaStream_t stream, const Arguments&... arguments) noexcept {
  const auto bytes = [&](int64_t rows) {
    return kWarps * WarpFloats(matrices, weights, rows, shape.head_size) *
           static_cast<int64_t>(sizeof(float));
  };
  const int rows = bytes(kRows) <= kSharedLimit ? kRows : 1;
  const int64_t tiles = (shape.length + rows - 1) / rows;
  return Launch(rows == kRows ? several : one,
                dim3(BlocksFor(int64_t{shape.batch} * shape.heads * tiles, kWarps)),
                dim3(kWarps * kWarp), static_cast<size_t>(bytes(rows)), stream, shape,
                1.0f / sqrtf(static_cast<float>(shape.head_size)), arguments...);
}

static_assert(kWarps * WarpFloats(4, 2, 1, kMaxPlainHeadSize) * int64_t{sizeof(float)} <=
                  kSharedLimit,
              "the largest head fits");

}  // namespace

template <typename T>
cudaError_t LaunchPlainAttentionForward(const AttentionShape& shape, const T* qkv, T* y,
                                        float* log_sums, cudaStream_t stream) noexcept {
  if (int64_t{shape.batch} * shape.length * shape.heads == 0) return cudaSuccess;
  return StartPlain(shape, 2, 1, PlainForward<kRows, T>, PlainForward<1, T>, stream, qkv, y,
                    log_sums);
}

template <typename T>
cudaError_t LaunchPlainAttentionBackward(const AttentionShape& shape,
                                         const AttentionBackwardCall<T>& call,
                                         cudaStream_t stream) noexcept {
  const int64_t rows = int64_t{shape.batch} * shape.length * shape.heads;
  if (rows == 0) return cudaSuccess;
  cudaError_t error = Launch(PlainRowDots<T>, dim3(BlocksFor(rows, kWarps)), dim3(kWarps * kWarp),
                             0, stream, shape, call.y, call.dy, call.delta);
  if (error != cudaSuccess) return error;
  error =
      StartPlain(shape, 4, 2, PlainKeyGradients<kRows, T>, PlainKeyGradients<1, T>, stream, call);
  if (error != cudaSuccess) return error;
  return StartPlain(shape, 3, 1, PlainQueryGradients<kRows, T>, PlainQueryGradients<1, T>, stream,
                    call);
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
