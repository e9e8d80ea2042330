#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_mma.h"

namespace engine::cuda_ops {
namespace {

// A block has kWarps warps of kRowTiles x 16 queries, and visits tiles of kKeys keys.
template <int kHeadSize>
struct ForwardTiles;
template <>
struct ForwardTiles<64> {
  static constexpr int kWarps = 4, kRowTiles = 2, kKeys = 64, kBlocks = 2;
};
template <>
struct ForwardTiles<128> {
  static constexpr int kWarps = 8, kRowTiles = 1, kKeys = 64, kBlocks = 1;
};

// The queries of a warp: 16 kRowTiles rows, of which a lane holds parts of rows lane / 4 and
// lane / 4 + 8 of each tile of 16; index `half` is one of the two.
template <int kHeadSize, int kRowTiles>
struct RowState {
  float sums[kRowTiles][kHeadSize / 8][4];  // of exp(score - largest) * value
  float largest[kRowTiles][2];              // score so far, not scaled
  float total[kRowTiles][2];                // of exp(score - largest), of this lane's columns
};

template <int kHeadSize>
struct ForwardBlock {
  using Tiles = ForwardTiles<kHeadSize>;
  static constexpr int kThreads = Tiles::kWarps * kWarp;
  static constexpr int kQueries = Tiles::kWarps * Tiles::kRowTiles * 16;
  static constexpr int kTile = Tiles::kKeys * kHeadSize;
  static constexpr int kSharedBytes =
      (kQueries * kHeadSize + 4 * kTile) * static_cast<int>(sizeof(Bf16));
  static_assert(kSharedBytes <= kSharedLimit, "every device has so much");
};

// Scores become exp(score - largest), with what was summed up so far brought to the new largest.
// `scale` is that of scores, for powers of 2. The first tile of keys has one that the row sees, so
// `largest` is finite from then on.
template <int kHeadSize, int kRowTiles, int kColumnTiles>
__device__ inline void ExponentiateScores(float (&scores)[kRowTiles][kColumnTiles][4], float scale,
                                          RowState<kHeadSize, kRowTiles>* state) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = state->largest[r][half];
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        largest = fmaxf(largest, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      }
      // Four lanes share a row.
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float shift = largest * scale;
      const float correction = PowerOf2(state->largest[r][half] * scale - shift);
      state->largest[r][half] = largest;
      float total = state->total[r][half] * correction;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[r][n][i] = PowerOf2(scores[r][n][i] * scale - shift);
          total += scores[r][n][i];
        }
      }
      state->total[r][half] = total;
#pragma unroll
      for (int n = 0; n < kHeadSize / 8; ++n) {
        state->sums[r][n][2 * half] *= correction;
        state->sums[r][n][2 * half + 1] *= correction;
      }
    }
  }
}

// Divides by the totals, and writes the logarithms of the sums.
template <int kHeadSize, int kRowTiles>
__device__ inline void FinishRows(RowState<kHeadSize, kRowTiles>* state, float scale,
                                  float* log_sums, int32_t first_query, int32_t length) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = state->total[r][half];
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      const int32_t query = first_query + 16 * r + AccumulatorRow(Lane(), 2 * half);
      if (log_sums != nullptr && Lane() % 4 == 0 && query < length) {
        log_sums[query] = state->largest[r][half] * scale + logf(total);
      }
      const float share = 1.0f / total;
#pragma unroll
      for (int n = 0; n < kHeadSize / 8; ++n) {
        state->sums[r][n][2 * half] *= share;
        state->sums[r][n][2 * half + 1] *= share;
      }
    }
  }
}

struct ForwardArguments {
  AttentionShape shape;
  float scale;
  const Bf16* qkv;
  Bf16* y;
  float* log_sums;
};

// One tile of keys, for the warp's queries, the first of which is row `own_row` of the tile
// `queries`.
template <int kHeadSize, int kRowTiles, int kKeys>
__device__ inline void VisitKeys(const Bf16* queries, int own_row, const Bf16* keys,
                                 const Bf16* values, int32_t first_query, int32_t first_key,
                                 const ForwardArguments& arguments,
                                 RowState<kHeadSize, kRowTiles>* state) {
  const AttentionShape& shape = arguments.shape;
  if (shape.causal && first_key >= first_query + 16 * kRowTiles) return;  // none is visible
  float scores[kRowTiles][kKeys / 8][4];
  MultiplyRows<kHeadSize>(scores, queries, own_row, keys, 0);
  MaskScores(scores, first_query, first_key, shape);
  ExponentiateScores<kHeadSize>(scores, arguments.scale * kLog2E, state);
  MultiplyColumns<kHeadSize>(state->sums, scores, values, 0);
}

template <int kHeadSize>
__global__ void __launch_bounds__(ForwardBlock<kHeadSize>::kThreads,
                                  ForwardTiles<kHeadSize>::kBlocks)
    FlashForward(ForwardArguments arguments) {
  using Tiles = ForwardTiles<kHeadSize>;
  using Block = ForwardBlock<kHeadSize>;
  constexpr int kRowTiles = Tiles::kRowTiles, kKeys = Tiles::kKeys;
  const AttentionShape& shape = arguments.shape;
  const BlockPlace place =
      PlaceOfBlock(blockIdx.x, shape, TileCount(shape.length, Block::kQueries), shape.causal);
  const auto part = [&](QkvPart which) {
    return arguments.qkv + shape.packed_offset(place.sample, place.head, which);
  };
  auto* const q = reinterpret_cast<Bf16*>(DynamicShared());
  Bf16* const k = q + Block::kQueries * kHeadSize;  // two tiles: one is used, one arrives
  Bf16* const v = k + 2 * Block::kTile;
  const auto load_keys = [&](int32_t tile) {
    const Bf16* const rows = part(QkvPart::kKey);
    LoadTile<kKeys, kHeadSize, Block::kThreads>(k + tile % 2 * Block::kTile, rows,
                                                shape.packed_width(), tile * kKeys, shape.length);
    LoadTile<kKeys, kHeadSize, Block::kThreads>(v + tile % 2 * Block::kTile, rows + shape.width(),
                                                shape.packed_width(), tile * kKeys, shape.length);
    CommitCopies();
  };

  const int32_t block_query = place.tile * Block::kQueries;
  LoadTile<Block::kQueries, kHeadSize, Block::kThreads>(
      q, part(QkvPart::kQuery), shape.packed_width(), block_query, shape.length);
  load_keys(0);
  const int own_row = static_cast<int>(threadIdx.x) / kWarp * 16 * kRowTiles;
  const int32_t first_query = block_query + own_row;
  RowState<kHeadSize, kRowTiles> state;
  Clear(state.sums);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.largest[r][half] = -INFINITY;
      state.total[r][half] = 0;
    }
  }
  const TileRange tiles = KeyTiles(shape, block_query, Block::kQueries, kKeys);
  for (int32_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForCopies<0>();
    __syncthreads();  // the tile is there, and all have left the one before
    if (tile + 1 < tiles.end) load_keys(tile + 1);
    VisitKeys<kHeadSize, kRowTiles, kKeys>(q, own_row, k + tile % 2 * Block::kTile,
                                           v + tile % 2 * Block::kTile, first_query, tile * kKeys,
                                           arguments, &state);
  }
  float* const log_sums =
      arguments.log_sums == nullptr
          ? nullptr
          : arguments.log_sums + shape.statistics_offset(place.sample, place.head);
  FinishRows(&state, arguments.scale, log_sums, first_query, shape.length);
  StoreRows<kHeadSize>(state.sums, q, own_row,
                       {arguments.y + shape.row_offset(place.sample, place.head), shape.width(),
                        first_query, shape.length, false});
}

template <int kHeadSize>
cudaError_t Start(const ForwardArguments& arguments, cudaStream_t stream) noexcept {
  using Block = ForwardBlock<kHeadSize>;
  const AttentionShape& shape = arguments.shape;
  const int64_t blocks =
      int64_t{shape.batch} * shape.heads * TileCount(shape.length, Block::kQueries);
  return Launch(FlashForward<kHeadSize>, dim3(static_cast<unsigned>(blocks)), dim3(Block::kThreads),
                Block::kSharedBytes, stream, arguments);
}

}  // namespace

cudaError_t LaunchFlashForward(const AttentionShape& shape, const Bf16* qkv, Bf16* y,
                               float* log_sums, cudaStream_t stream) noexcept {
  if (int64_t{shape.batch} * shape.length * shape.heads == 0) return cudaSuccess;
  const ForwardArguments arguments = {shape, 1.0f / sqrtf(static_cast<float>(shape.head_size)), qkv,
                                      y, log_sums};
  if (shape.head_size == 64) return Start<64>(arguments, stream);
  if (shape.head_size == 128) return Start<128>(arguments, stream);
  return cudaErrorInvalidValue;
}

}  // namespace engine::cuda_ops
