// The pieces of flash attention that its kernels share: tiles in shared memory, products of a
// warp's rows with them, and rows back to memory.
//
// A warp owns kRowTiles x 16 consecutive rows (of the left factors and of the sums), which start at
// `own_row` of the tiles that the block owns. `right` is a tile that all warps visit.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention_tiles.h"
#include "kernels/element.h"
#include "kernels/functions.h"
#include "kernels/mma.h"

namespace engine::cuda_ops {

__device__ inline uint32_t PackBf16(float low, float high) {
#ifdef ENGINE_EMULATED_CUDA
  const Pack<Bf16, 2> pack = {{FromFloat<Bf16>(low), FromFloat<Bf16>(high)}};
  uint32_t bits;
  memcpy(&bits, &pack, sizeof bits);
  return bits;
#else
  uint32_t bits;  // one instruction; rounds like FromFloat
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#endif
}

__device__ inline int Lane() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

// Starts to copy rows [first, first + kRows) of a matrix in memory to a tile; rows from `limit` on
// become zeros.
template <int kRows, int kColumns, int kThreads>
__device__ inline void LoadTile(Bf16* tile, const Bf16* rows, int64_t row_stride, int32_t first,
                                int32_t limit) {
  constexpr int kChunks = kColumns / 8;
  static_assert(kRows * kChunks % kThreads == 0, "every thread copies as many chunks");
  static_assert(kThreads / kChunks % 8 == 0, "the rows of a thread have the same permutation");
  constexpr int kRowStep = kThreads / kChunks;
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  Bf16* const target = tile + ChunkOffset<kColumns>(row, chunk);
  const Bf16* source = rows + (first + row) * row_stride + chunk * 8;
#pragma unroll
  for (int i = 0; i < kRows / kRowStep; ++i) {
    const bool valid = first + row + i * kRowStep < limit;
    CopyAsync16(target + i * kRowStep * kColumns, valid ? source : rows, valid);
    source += kRowStep * row_stride;
  }
}

template <int kRowTiles, int kColumnTiles>
__device__ inline void Clear(float (&sums)[kRowTiles][kColumnTiles][4]) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r][n][i] = 0;
    }
  }
}

template <int kRowTiles, int kColumnTiles>
__device__ inline void Scale(float (&sums)[kRowTiles][kColumnTiles][4], float factor) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r][n][i] *= factor;
    }
  }
}

// sums = (the warp's rows of `own`) * (rows [right_row, right_row + 8 kColumnTiles) of `right`)':
// scores from queries and keys.
template <int kColumns, int kRowTiles, int kColumnTiles>
__device__ inline void MultiplyRows(float (&sums)[kRowTiles][kColumnTiles][4], const Bf16* own,
                                    int own_row, const Bf16* right, int right_row) {
  static_assert(kColumnTiles % 2 == 0, "two tiles are loaded at once");
  Clear(sums);
#pragma unroll
  for (int step = 0; step < kColumns / 16; ++step) {  // the columns 16 step, ..., 16 step + 15
    uint32_t left[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const int row = own_row + 16 * r + LeftRow(Lane());
      LoadMatrices(left[r], own + ChunkOffset<kColumns>(row, 2 * step + LeftChunk(Lane())));
    }
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      uint32_t factors[4];
      const int row = right_row + 8 * n + RightRow(Lane());
      LoadMatrices(factors, right + ChunkOffset<kColumns>(row, 2 * step + RightChunk(Lane())));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAdd(sums[r][n], left[r], factors[0], factors[1]);
        MultiplyAdd(sums[r][n + 1], left[r], factors[2], factors[3]);
      }
    }
  }
}

// sums += weights * rows [right_row, right_row + 8 kWeightTiles) of `right`: y from probabilities
// and values. The accumulator of a product is, rounded, the left factor of this one.
template <int kColumns, int kRowTiles, int kWeightTiles>
__device__ inline void MultiplyColumns(float (&sums)[kRowTiles][kColumns / 8][4],
                                       const float (&weights)[kRowTiles][kWeightTiles][4],
                                       const Bf16* right, int right_row) {
#pragma unroll
  for (int step = 0; step < kWeightTiles / 2; ++step) {
    uint32_t left[kRowTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const auto& low = weights[r][2 * step];  // columns 0 to 7 of 16
      const auto& high = weights[r][2 * step + 1];
      left[r][0] = PackBf16(low[0], low[1]);
      left[r][1] = PackBf16(low[2], low[3]);
      left[r][2] = PackBf16(high[0], high[1]);
      left[r][3] = PackBf16(high[2], high[3]);
    }
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += 2) {
      uint32_t factors[4];
      const int row = right_row + 16 * step + LeftRow(Lane());
      LoadMatricesTransposed(factors, right + ChunkOffset<kColumns>(row, n + LeftChunk(Lane())));
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAdd(sums[r][n], left[r], factors[0], factors[1]);
        MultiplyAdd(sums[r][n + 1], left[r], factors[2], factors[3]);
      }
    }
  }
}

// Hides from the warp's scores (rows are queries from `first_query` on, columns keys from
// `first_key` on) the keys that a query must not see: those behind the last, and, when causal, those
// behind the query. A pass of its own, as few tiles have any. What depends on the lane is in `left`
// and `ahead`, the rest are constants.
template <int kRowTiles, int kColumnTiles>
__device__ inline void MaskScores(float (&scores)[kRowTiles][kColumnTiles][4], int32_t first_query,
                                  int32_t first_key, const AttentionShape& shape) {
  const int32_t end = first_key + 8 * kColumnTiles;
  if (end <= shape.length && (!shape.causal || end <= first_query + 1)) return;
  const int32_t column = AccumulatorColumn(Lane(), 0), row = AccumulatorRow(Lane(), 0);
  const int32_t left = shape.length - first_key - column;        // keys
  const int32_t ahead = first_query + row - first_key - column;  // queries of keys
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int query = 16 * r + AccumulatorRow(0, i), key = 8 * n + AccumulatorColumn(0, i);
        if (key >= left || (shape.causal && key - query > ahead)) scores[r][n][i] = -INFINITY;
      }
    }
  }
}

// Where rows of sums go.
struct RowOutput {
  Bf16* rows;  // of row 0
  int64_t row_stride;
  int32_t first, limit;  // the warp's first row there; rows from `limit` on are not written
  bool sum;              // add
};

// Writes the warp's rows, through its own rows of the tile `own`, which no other warp reads.
template <int kColumns, int kRowTiles>
__device__ inline void StoreRows(const float (&sums)[kRowTiles][kColumns / 8][4], Bf16* own,
                                 int own_row, const RowOutput& output) {
  constexpr int kChunks = kColumns / 8;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const int row = own_row + 16 * r + AccumulatorRow(Lane(), i);
        Bf16* const target = own + ChunkOffset<kColumns>(row, n) + AccumulatorColumn(Lane(), i);
        *reinterpret_cast<uint32_t*>(target) = PackBf16(sums[r][n][i], sums[r][n][i + 1]);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRowTiles * 16 * kChunks / kWarp; ++i) {
    const int index = i * kWarp + Lane();
    const int row = index / kChunks, chunk = index % kChunks;
    if (output.first + row >= output.limit) continue;
    using Chunk = Pack<Bf16, 8>;
    Chunk values =
        *reinterpret_cast<const Chunk*>(own + ChunkOffset<kColumns>(own_row + row, chunk));
    auto* const target = reinterpret_cast<Chunk*>(
        output.rows + (output.first + row) * output.row_stride + chunk * 8);
    if (output.sum) {
      const Chunk before = *target;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        values.at[j] = FromFloat<Bf16>(ToFloat(before.at[j]) + ToFloat(values.at[j]));
      }
    }
    *target = values;
  }
}

}  // namespace engine::cuda_ops
