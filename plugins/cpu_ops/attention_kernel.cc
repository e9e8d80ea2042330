#include "attention_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "simd.h"

namespace engine::cpu_ops {
namespace {

// Rows of scores kept for the gradients of k and v; a multiple of kTileRows.
constexpr int64_t kQueryBlock = 64;

constexpr int64_t Padded(int64_t columns) noexcept {
  return (columns + kLanes - 1) / kLanes * kLanes;
}

// The tile of scores of queries [first, first + rows): rows <= kTileRows, `columns` keys with
// padding. When causal, keys after the last query are not even computed.
struct ScoreTile {
  int64_t first;
  int64_t rows;
  int64_t columns;
  int64_t stride;  // between rows of scores
  int64_t length;
  float scale;           // in the exponent: 1 once there is a mask in the scores
  float gradient_scale;  // of q k^T
  bool causal;
  const float* mask;
  int64_t mask_row, mask_column;

  ScoreTile(const AttentionHead& head, int64_t begin, int64_t end) noexcept
      : first(begin),
        rows(std::min(kTileRows, end - begin)),
        columns(Padded(head.causal ? std::min(first + rows, head.keys) : head.keys)),
        stride(Padded(head.keys)),
        length(head.keys),
        scale(head.mask == nullptr ? head.scale : 1.0f),
        gradient_scale(head.scale),
        causal(head.causal),
        mask(head.mask),
        mask_row(head.mask_row),
        mask_column(head.mask_column) {}

  int64_t keys() const noexcept { return std::min(columns, length); }
  int64_t visible(int64_t row) const noexcept {
    return causal ? std::min(first + row + 1, length) : length;
  }
};

// scores -> scale * score + mask
template <typename V>
CPU_OPS_INLINE void AddMask(const ScoreTile& tile, int64_t row, float* scores) noexcept {
  const float* const mask = tile.mask + (tile.first + row) * tile.mask_row;
  const int64_t keys = tile.keys();
  for (int64_t j = 0; j < keys; j += kWidth<V>) {
    const int64_t lanes = LanesAt<V>(j, keys);
    const V added = tile.mask_column == 0 ? V{} + *mask : LoadAs<V>(mask + j, lanes);
    StoreAs(scores + j, tile.gradient_scale * LoadAs<V>(scores + j) + added);
  }
}

// Keys that a row does not see get a score of -infinity, of which the exponential is 0; so the
// loops over rows run over whole vectors.
template <typename V>
CPU_OPS_INLINE void Mask(const ScoreTile& tile, int64_t row, float* scores) noexcept {
  if (tile.mask != nullptr) AddMask<V>(tile, row, scores);
  constexpr float kIndex[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const V index = LoadAs<V>(kIndex);
  const int64_t visible = tile.visible(row);
  for (int64_t j = visible / kWidth<V> * kWidth<V>; j < tile.columns; j += kWidth<V>) {
    const auto seen = static_cast<float>(visible - j);
    const V hidden = V{} - std::numeric_limits<float>::infinity();
    StoreAs(scores + j, index < seen ? LoadAs<V>(scores + j) : hidden);
  }
}

// scores -> exp(scale * (score - largest)); inverse_sums[row] = 1 / their sum.
template <typename V>
CPU_OPS_INLINE void ExponentiateRows(const ScoreTile& tile, float* scores, float* inverse_sums,
                                     float* log_sums) {
  for (int64_t row = 0; row < tile.rows; ++row, scores += tile.stride) {
    Mask<V>(tile, row, scores);
    V largest_lanes = LoadAs<V>(scores);
    for (int64_t j = kWidth<V>; j < tile.columns; j += kWidth<V>) {
      largest_lanes = Larger(largest_lanes, LoadAs<V>(scores + j));
    }
    const float largest = Largest(largest_lanes);
    V sums = {};
    for (int64_t j = 0; j < tile.columns; j += kWidth<V>) {
      const V exponentials = Exp(tile.scale * (LoadAs<V>(scores + j) - largest));
      StoreAs(scores + j, exponentials);
      sums += exponentials;
    }
    const float sum = Sum(sums);
    inverse_sums[row] = 1.0f / sum;
    if (log_sums != nullptr) log_sums[tile.first + row] = tile.scale * largest + std::log(sum);
  }
}

CPU_OPS_KERNEL void ScaleRows(int64_t rows, int64_t width, const float* factors, RowTarget y) {
  for (int64_t row = 0; row < rows; ++row) {
    float* values = y.data + row * y.row_stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) values[j] *= factors[row];
  }
}

// scores -> probabilities p, and dp (gradients of p) -> gradients of the scores:
//   ds = scale * p * (dp - sum(p * dp)).
template <typename V>
CPU_OPS_INLINE void SoftmaxGradientRows(const ScoreTile& tile, const float* log_sums, float* scores,
                                        float* dp) {
  for (int64_t row = 0; row < tile.rows; ++row, scores += tile.stride, dp += tile.stride) {
    Mask<V>(tile, row, scores);
    const float log_sum = log_sums[tile.first + row];
    V dots = {};
    for (int64_t j = 0; j < tile.columns; j += kWidth<V>) {
      const V p = Exp(tile.scale * LoadAs<V>(scores + j) - log_sum);
      StoreAs(scores + j, p);
      dots += p * LoadAs<V>(dp + j);
    }
    const float dot = Sum(dots);
    for (int64_t j = 0; j < tile.columns; j += kWidth<V>) {
      StoreAs(dp + j, tile.gradient_scale * LoadAs<V>(scores + j) * (LoadAs<V>(dp + j) - dot));
    }
  }
}

RowMatrix Row(RowMatrix matrix, int64_t row) noexcept {
  return {matrix.data + row * matrix.row_stride, matrix.row_stride};
}

RowTarget Row(RowTarget matrix, int64_t row) noexcept {
  return {matrix.data + row * matrix.row_stride, matrix.row_stride};
}

StridedMatrix Strided(RowMatrix matrix) noexcept {
  return {matrix.data, matrix.row_stride, 1};
}

// SmallGemm, or, with half of k, of pairs.
void Multiply(const AttentionHead& head, int64_t m, int64_t n, int64_t k, StridedMatrix a,
              RowMatrix b, RowTarget c, bool sum) noexcept {
  if (head.pairs) return SmallGemmOfPairs(m, n, (k + 1) / 2, a, b, c, sum);
  SmallGemm(m, n, k, a, b, c, sum);
}

// target[i, j] = the pair of numbers (2i, j) and (2i + 1, j) of source, or of one and 0 behind the last
// row: b of a product.
CPU_OPS_KERNEL RowMatrix PairRows(RowMatrix source, int64_t rows, int64_t width, RowTarget target) {
  const int64_t stride = 2 * source.row_stride;
  for (int64_t row = 0; row < rows; row += 2) {
    const auto* const first = reinterpret_cast<const BFloat16*>(source.data) + row * stride;
    const BFloat16* const second = row + 1 < rows ? first + stride : first;
    const uint32_t kept = row + 1 < rows ? 0xffff0000u : 0;
    float* const to = target.data + row / 2 * target.row_stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      to[j] = std::bit_cast<float>(first[j].bits | (uint32_t{second[j].bits} << 16 & kept));
    }
  }
  return {target.data, target.row_stride};
}

// Rows of floats become pairs of columns, in the memory that they begin in.
template <typename V>
CPU_OPS_INLINE void PairColumns(float* data, int64_t stride, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, data += stride) {
    auto* const to = reinterpret_cast<BFloat16*>(data);
    for (int64_t j = 0; j < width; j += kWidth<V>) StoreAs(to + j, LoadAs<V>(data + j));
  }
}

// Gradients of k and v from queries [begin, end), whose q, dy, p and ds are given.
void KeyGradients(const AttentionHead& head, RowMatrix q, RowMatrix dy, int64_t begin, int64_t end,
                  const float* p, const float* ds, const AttentionGradients& gradients) noexcept {
  const int64_t stride = Padded(head.keys);
  const int64_t keys = head.causal ? std::min(end, head.keys) : head.keys;
  for (int64_t key = 0; key < keys; key += kTileRows) {
    const int64_t rows = std::min(kTileRows, keys - key);
    const int64_t first = head.causal ? std::max(begin, key) : begin;  // query that sees the keys
    const bool later = begin > (head.causal ? key : 0);
    const int64_t row = (first - begin) / (head.pairs ? 2 : 1), offset = row * stride + key;
    if (gradients.dv.data != nullptr) {
      Multiply(head, rows, head.value_size, end - first, {p + offset, 1, stride}, Row(dy, row),
               Row(gradients.dv, key), gradients.sum_v || later);
    }
    if (gradients.dk.data != nullptr) {
      Multiply(head, rows, head.size, end - first, {ds + offset, 1, stride}, Row(q, row),
               Row(gradients.dk, key), gradients.sum_k || later);
    }
  }
}

// Zeros in rows [begin, end) of a gradient that is written.
void ZeroRows(RowTarget target, int64_t begin, int64_t end, int64_t width, bool sum) noexcept {
  if (target.data == nullptr || sum) return;
  for (int64_t i = begin; i < end; ++i) std::fill_n(Row(target, i).data, width, 0.0f);
}

}  // namespace

// Floats: k and v transposed, p and ds of a block. Pairs take half of that, and k, a block of q and of
// dy, and p and ds of a tile besides.
int64_t AttentionScratch(int64_t keys, int64_t size, int64_t value_size) noexcept {
  return Padded(keys) * (size + value_size + 2 * kQueryBlock) +
         kQueryBlock / 2 * (size + value_size);
}

// Rows of y are divided by their sums last: the probabilities themselves are never needed.
void AttentionForward(const AttentionHead& head, RowTarget y, float* log_sums,
                      float* scratch) noexcept {
  const int64_t stride = Padded(head.keys), size = head.pairs ? head.size / 2 : head.size;
  float* k_transposed = scratch;
  float* scores = k_transposed + size * stride;
  Transpose(head.k, head.keys, size, k_transposed, stride);
  const RowMatrix v = head.pairs ? PairRows(head.v, head.keys, head.value_size,
                                            {scores + kTileRows * stride, head.value_size})
                                 : head.v;
  for (int64_t query = 0; query < head.queries; query += kTileRows) {
    const ScoreTile tile(head, query, head.queries);
    float inverse_sums[kTileRows];
    Multiply(head, tile.rows, tile.columns, head.size, Strided(Row(head.q, query)),
             {k_transposed, stride}, {scores, stride}, false);
    CPU_OPS_RUN(ExponentiateRows, tile, scores, inverse_sums, log_sums);
    if (head.pairs) CPU_OPS_RUN(PairColumns, scores, stride, tile.rows, tile.columns);
    Multiply(head, tile.rows, head.value_size, tile.keys(), {scores, stride, 1}, v, Row(y, query),
             false);
    ScaleRows(tile.rows, head.value_size, inverse_sums, Row(y, query));
  }
}

namespace {

// What the queries of a block are multiplied with, and where their p and ds are put, of which rows are
// `stride` apart.
struct BackwardMemory {
  int64_t stride;
  float *k_transposed, *v_transposed, *p, *ds;
  RowMatrix k;
  float *tile_p, *tile_ds, *q, *dy;  // of pairs

  BackwardMemory(const AttentionHead& head, float* scratch) noexcept
      : stride(Padded(head.keys)), k_transposed(scratch), k(head.k) {
    const int64_t share = head.pairs ? 2 : 1;
    v_transposed = k_transposed + head.size / share * stride;
    p = v_transposed + head.value_size / share * stride;
    ds = p + kQueryBlock / share * stride;
    tile_p = ds + kQueryBlock / share * stride;
    tile_ds = tile_p + kTileRows * stride;
    q = tile_ds + kTileRows * stride;
    dy = q + kQueryBlock / 2 * head.size;
    Transpose(head.k, head.keys, head.size / share, k_transposed, stride);
    Transpose(head.v, head.keys, head.value_size / share, v_transposed, stride);
    if (head.pairs) {
      k = PairRows(head.k, head.keys, head.size,
                   {dy + kQueryBlock / 2 * head.value_size, head.size});
    }
  }
};

}  // namespace

void AttentionBackward(const AttentionHead& head, RowMatrix dy, const float* log_sums,
                       const AttentionGradients& gradients, float* scratch) noexcept {
  const BackwardMemory memory(head, scratch);
  const int64_t stride = memory.stride;
  for (int64_t begin = 0; begin < head.queries; begin += kQueryBlock) {
    const int64_t end = std::min(begin + kQueryBlock, head.queries);
    for (int64_t query = begin; query < end; query += kTileRows) {
      const ScoreTile tile(head, query, end);
      const int64_t row = query - begin;
      float* tile_p = head.pairs ? memory.tile_p : memory.p + row * stride;
      float* tile_ds = head.pairs ? memory.tile_ds : memory.ds + row * stride;
      Multiply(head, tile.rows, tile.columns, head.size, Strided(Row(head.q, query)),
               {memory.k_transposed, stride}, {tile_p, stride}, false);
      Multiply(head, tile.rows, tile.columns, head.value_size, Strided(Row(dy, query)),
               {memory.v_transposed, stride}, {tile_ds, stride}, false);
      CPU_OPS_RUN(SoftmaxGradientRows, tile, log_sums, tile_p, tile_ds);
      if (head.pairs) {
        const int64_t at = row / 2 * stride;
        CPU_OPS_RUN(PairColumns, tile_p, stride, tile.rows, tile.columns);
        CPU_OPS_RUN(PairColumns, tile_ds, stride, tile.rows, tile.columns);
        PairRows({tile_p, stride}, tile.rows, tile.columns, {memory.p + at, stride});
        PairRows({tile_ds, stride}, tile.rows, tile.columns, {memory.ds + at, stride});
      }
      if (gradients.dq.data == nullptr) continue;
      Multiply(head, tile.rows, head.size, tile.keys(), {tile_ds, stride, 1}, memory.k,
               Row(gradients.dq, query), gradients.sum_q);
    }
    RowMatrix q = Row(head.q, begin), block_dy = Row(dy, begin);
    if (head.pairs) {
      q = PairRows(q, end - begin, head.size, {memory.q, head.size});
      block_dy = PairRows(block_dy, end - begin, head.value_size, {memory.dy, head.value_size});
    }
    KeyGradients(head, q, block_dy, begin, end, memory.p, memory.ds, gradients);
  }
  const int64_t seen = head.causal ? std::min(head.queries, head.keys) : head.keys;
  ZeroRows(gradients.dk, seen, head.keys, head.size, gradients.sum_k);
  ZeroRows(gradients.dv, seen, head.keys, head.value_size, gradients.sum_v);
}

}  // namespace engine::cpu_ops
