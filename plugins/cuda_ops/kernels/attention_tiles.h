// Index arithmetic of attention: where rows lie in memory and in shared memory, which elements of a
// matrix a lane holds, and which tiles a block visits. Plain functions, tested on the host.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace engine::cuda_ops {

// Of which rows a block is the owner.
struct BlockPlace {
  int32_t sample, head, tile;
};

// `tiles` blocks for each head. With `last_first` the blocks of a head begin with its last tile:
// when causal, the last tile of queries has the most keys to visit and should not start last.
__host__ __device__ inline BlockPlace PlaceOfBlock(int64_t block, const AttentionShape& shape,
                                                   int32_t tiles, bool last_first) {
  const auto tile = static_cast<int32_t>(block % tiles);
  const int64_t head = block / tiles;
  return {static_cast<int32_t>(head / shape.heads), static_cast<int32_t>(head % shape.heads),
          last_first ? tiles - 1 - tile : tile};
}

__host__ __device__ inline int32_t TileCount(int32_t length, int32_t rows) {
  return (length + rows - 1) / rows;
}

struct TileRange {
  int32_t begin, end;
};

// The tiles of `tile_keys` keys that any of `queries` queries from `first_query` on sees.
__host__ __device__ inline TileRange KeyTiles(const AttentionShape& shape, int32_t first_query,
                                              int32_t queries, int32_t tile_keys) {
  const int32_t visible =
      first_query + queries < shape.length ? first_query + queries : shape.length;
  return {0, TileCount(shape.causal ? visible : shape.length, tile_keys)};
}

// The tiles of `tile_queries` queries any of which sees any key from `first_key` on.
__host__ __device__ inline TileRange QueryTiles(const AttentionShape& shape, int32_t first_key,
                                                int32_t tile_queries) {
  return {shape.causal ? first_key / tile_queries : 0, TileCount(shape.length, tile_queries)};
}

// A tile in shared memory: rows of kColumns 16-bit elements, in chunks of 8 (16 bytes). The chunks
// of a row are permuted by its number, so that eight rows at the same chunk lie in different banks.
// The index of the first element of a chunk:
template <int kColumns>
__host__ __device__ constexpr int ChunkOffset(int row, int chunk) {
  static_assert(kColumns % 64 == 0, "the permutation is of eight chunks");
  return row * kColumns + ((chunk ^ (row & 7)) * 8);
}

// The accumulator of a 16 x 8 tile: element i of lane l is at this row and column.
__host__ __device__ constexpr int AccumulatorRow(int lane, int i) {
  return lane / 4 + (i / 2) * 8;
}
__host__ __device__ constexpr int AccumulatorColumn(int lane, int i) {
  return 2 * (lane % 4) + i % 2;
}

// The row and the chunk whose address a lane gives when four 8 x 8 matrices are loaded:
// as left factor, 16 rows x 16 columns, or, transposed, as right factors: 16 rows (summed over) x
// 2 tiles of 8 columns;
__host__ __device__ constexpr int LeftRow(int lane) {
  return lane % 16;
}
__host__ __device__ constexpr int LeftChunk(int lane) {
  return lane / 16;
}
// as right factors whose rows are the columns of the product: 2 tiles of 8 rows x 16 columns
// (summed over).
__host__ __device__ constexpr int RightRow(int lane) {
  return lane / 16 * 8 + lane % 8;
}
__host__ __device__ constexpr int RightChunk(int lane) {
  return lane / 8 % 2;
}

}  // namespace engine::cuda_ops
