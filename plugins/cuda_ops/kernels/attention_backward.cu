#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_mma.h"

namespace engine::cuda_ops {
namespace {

// A block has kWarps warps of kRowTiles x 16 rows (keys in one kernel, queries in the other), and
// visits tiles of kVisited rows, of which it takes kStrip at a time.
template <int kHeadSize>
struct BackwardTiles;
template <>
struct BackwardTiles<64> {
  static constexpr int kWarps = 4, kRowTiles = 2, kVisited = 64, kStrip = 32, kBlocks = 2;
};
template <>
struct BackwardTiles<128> {
  static constexpr int kWarps = 8, kRowTiles = 1, kVisited = 32, kStrip = 32, kBlocks = 1;
};

template <int kHeadSize>
struct BackwardBlock {
  using Tiles = BackwardTiles<kHeadSize>;
  static constexpr int kThreads = Tiles::kWarps * kWarp;
  static constexpr int kWarpRows = Tiles::kRowTiles * 16;
  static constexpr int kRows = Tiles::kWarps * kWarpRows;
  static constexpr int kOwned = kRows * kHeadSize;           // elements of an owned tile
  static constexpr int kTile = Tiles::kVisited * kHeadSize;  // and of a visited one
  // Two owned tiles, and two pairs of visited ones: one is used, one arrives.
  static constexpr int kTileBytes = (2 * kOwned + 4 * kTile) * int{sizeof(Bf16)};
  // For each of the two, the statistics of kVisited queries.
  static constexpr int kStatisticsBytes = 4 * Tiles::kVisited * int{sizeof(float)};
  static_assert(kTileBytes + kStatisticsBytes <= kSharedLimit, "every device has so much");
};

struct BackwardArguments {
  AttentionShape shape;
  float scale;
  AttentionBackwardCall<Bf16> call;
};

// The rows of one head. Holds offsets, as pointers would take registers: the bases are constants.
class HeadRows {
 public:
  __device__ HeadRows(const BackwardArguments& arguments, const BlockPlace& place)
      : arguments_(arguments),
        packed_(arguments.shape.packed_offset(place.sample, place.head, QkvPart::kQuery)),
        plain_(arguments.shape.row_offset(place.sample, place.head)),
        statistics_(arguments.shape.statistics_offset(place.sample, place.head)) {}

  // k and v follow at distances of the width.
  __device__ const Bf16* q() const { return arguments_.call.qkv + packed_; }
  __device__ Bf16* dq() const { return arguments_.call.dqkv + packed_; }
  __device__ const Bf16* dy() const { return arguments_.call.dy + plain_; }
  __device__ const float* log_sums() const { return arguments_.call.log_sums + statistics_; }
  __device__ const float* delta() const { return arguments_.call.delta + statistics_; }

 private:
  const BackwardArguments& arguments_;
  const int64_t packed_, plain_, statistics_;
};

// delta: sum over a row of y dy. kHeadSize / 8 lanes share a row.
template <int kHeadSize>
__global__ void RowDots(AttentionShape shape, const Bf16* y, const Bf16* dy, float* delta) {
  constexpr int kLanes = kHeadSize / 8;
  const int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = index / kLanes;  // of (batch, length, heads)
  const bool valid = row < int64_t{shape.batch} * shape.length * shape.heads;
  float sum = 0;
  if (valid) {
    using Chunk = Pack<Bf16, 8>;
    const Chunk a = reinterpret_cast<const Chunk*>(y)[index];
    const Chunk b = reinterpret_cast<const Chunk*>(dy)[index];
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += ToFloat(a.at[i]) * ToFloat(b.at[i]);
  }
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (!valid || index % kLanes != 0) return;
  const auto head = static_cast<int32_t>(row % shape.heads);
  const int64_t position = row / shape.heads;
  const auto sample = static_cast<int32_t>(position / shape.length);
  delta[shape.statistics_offset(sample, head) + position % shape.length] = sum;
}

// A query as PowerOf2 wants it: log_sums * log2(e). Queries from the length on get probability 0.
__device__ inline float LogSum(const HeadRows& rows, int32_t query, int32_t length) {
  return query < length ? rows.log_sums()[query] * kLog2E : INFINITY;
}
__device__ inline float Delta(const HeadRows& rows, int32_t query, int32_t length) {
  return query < length ? rows.delta()[query] : 0.0f;
}

// dk and dv. Products are transposed: the warp's rows are keys and columns are queries, so that the
// accumulators of probabilities and of their gradients are the left factors of dv and dk.
template <int kHeadSize>
struct KeyGradients {
  float dk[BackwardTiles<kHeadSize>::kRowTiles][kHeadSize / 8][4];
  float dv[BackwardTiles<kHeadSize>::kRowTiles][kHeadSize / 8][4];
};

// What the warps of a block see of one tile of queries.
struct QueryTile {
  const Bf16 *q, *dy;
  const float* statistics;  // LogSum of its queries, then Delta
  int32_t first;            // query
};

template <int kHeadSize>
__device__ inline void VisitQueries(const Bf16* k, const Bf16* v, int own_row, int32_t first_key,
                                    const QueryTile& tile, int strip,
                                    const BackwardArguments& arguments,
                                    KeyGradients<kHeadSize>* gradients) {
  using Tiles = BackwardTiles<kHeadSize>;
  constexpr int kRowTiles = Tiles::kRowTiles, kColumnTiles = Tiles::kStrip / 8;
  const bool causal = arguments.shape.causal;
  const int32_t first_query = tile.first + strip;
  if (causal && first_query + Tiles::kStrip <= first_key) return;  // none sees these keys
  float p[kRowTiles][kColumnTiles][4], ds[kRowTiles][kColumnTiles][4];
  MultiplyRows<kHeadSize>(p, k, own_row, tile.q, strip);
  MultiplyRows<kHeadSize>(ds, v, own_row, tile.dy, strip);
  const float scale = arguments.scale * kLog2E;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * n + AccumulatorColumn(Lane(), i);
      const float log_sum = tile.statistics[strip + column];
      const float delta = tile.statistics[Tiles::kVisited + strip + column];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const int32_t key = first_key + 16 * r + AccumulatorRow(Lane(), i);
        const bool hidden = causal && first_query + column < key;
        p[r][n][i] = hidden ? 0.0f : PowerOf2(p[r][n][i] * scale - log_sum);
        ds[r][n][i] = p[r][n][i] * (ds[r][n][i] - delta);
      }
    }
  }
  MultiplyColumns<kHeadSize>(gradients->dv, p, tile.dy, strip);
  MultiplyColumns<kHeadSize>(gradients->dk, ds, tile.q, strip);
}

template <int kHeadSize>
__global__ void __launch_bounds__(BackwardBlock<kHeadSize>::kThreads,
                                  BackwardTiles<kHeadSize>::kBlocks)
    FlashKeyGradients(BackwardArguments arguments) {
  using Block = BackwardBlock<kHeadSize>;
  constexpr int kVisited = Block::Tiles::kVisited;
  static_assert(2 * kVisited <= Block::kThreads, "a thread loads one number of a query");
  const AttentionShape& shape = arguments.shape;
  const BlockPlace place =
      PlaceOfBlock(blockIdx.x, shape, TileCount(shape.length, Block::kRows), false);
  const HeadRows rows(arguments, place);
  auto* const k = reinterpret_cast<Bf16*>(DynamicShared());
  Bf16* const v = k + Block::kOwned;
  Bf16* const q = v + Block::kOwned;
  Bf16* const dy = q + 2 * Block::kTile;
  // For each of the two tiles: LogSum of its queries, then Delta.
  auto* const statistics = reinterpret_cast<float*>(dy + 2 * Block::kTile);
  const int32_t thread = static_cast<int32_t>(threadIdx.x);

  const auto load_queries = [&](int32_t tile) {
    LoadTile<kVisited, kHeadSize, Block::kThreads>(
        q + tile % 2 * Block::kTile, rows.q(), shape.packed_width(), tile * kVisited, shape.length);
    LoadTile<kVisited, kHeadSize, Block::kThreads>(dy + tile % 2 * Block::kTile, rows.dy(),
                                                   shape.width(), tile * kVisited, shape.length);
    CommitCopies();
  };
  const auto statistic = [&](int32_t tile) {
    const int32_t query = tile * kVisited + thread % kVisited;
    return thread < kVisited ? LogSum(rows, query, shape.length) : Delta(rows, query, shape.length);
  };
  const auto keep = [&](int32_t tile, float value) {
    if (thread < 2 * kVisited) statistics[tile % 2 * 2 * kVisited + thread] = value;
  };

  const int32_t block_key = place.tile * Block::kRows;
  const TileRange tiles = QueryTiles(shape, block_key, kVisited);
  LoadTile<Block::kRows, kHeadSize, Block::kThreads>(k, rows.q() + shape.width(),
                                                     shape.packed_width(), block_key, shape.length);
  LoadTile<Block::kRows, kHeadSize, Block::kThreads>(v, rows.q() + 2 * shape.width(),
                                                     shape.packed_width(), block_key, shape.length);
  load_queries(tiles.begin);
  keep(tiles.begin, statistic(tiles.begin));
  const int own_row = thread / kWarp * Block::kWarpRows;
  const int32_t first_key = block_key + own_row;
  KeyGradients<kHeadSize> gradients;
  Clear(gradients.dk);
  Clear(gradients.dv);
  for (int32_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForCopies<0>();
    __syncthreads();  // the tile is there, and all have left the one before
    if (tile + 1 < tiles.end) load_queries(tile + 1);
    const float next = statistic(tile + 1);  // arrives while this tile is used
    const int buffer = tile % 2;
    const QueryTile queries = {q + buffer * Block::kTile, dy + buffer * Block::kTile,
                               statistics + buffer * 2 * kVisited, tile * kVisited};
#pragma unroll 1
    for (int strip = 0; strip < kVisited; strip += Block::Tiles::kStrip) {
      VisitQueries<kHeadSize>(k, v, own_row, first_key, queries, strip, arguments, &gradients);
    }
    keep(tile + 1, next);
  }
  Scale(gradients.dk, arguments.scale);
  RowOutput output = {rows.dq() + shape.width(), shape.packed_width(), first_key, shape.length,
                      arguments.call.sum};
  StoreRows<kHeadSize>(gradients.dk, k, own_row, output);
  output.rows += shape.width();
  StoreRows<kHeadSize>(gradients.dv, v, own_row, output);
}

// What a lane knows of the warp's queries: of rows lane / 4 and lane / 4 + 8 of each tile of 16.
template <int kRowTiles>
struct LaneStatistics {
  float log_sum[kRowTiles][2], delta[kRowTiles][2];

  __device__ LaneStatistics(const HeadRows& rows, int32_t first_query, int32_t length) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t query = first_query + 16 * r + AccumulatorRow(Lane(), 2 * half);
        log_sum[r][half] = LogSum(rows, query, length);
        delta[r][half] = Delta(rows, query, length);
      }
    }
  }
};

template <int kHeadSize>
__device__ inline void VisitKeys(
    const Bf16* q, const Bf16* dy, int own_row, int32_t first_query, const Bf16* k, const Bf16* v,
    int32_t tile_key, int strip, const BackwardArguments& arguments,
    const LaneStatistics<BackwardTiles<kHeadSize>::kRowTiles>& rows,
    float (&dq)[BackwardTiles<kHeadSize>::kRowTiles][kHeadSize / 8][4]) {
  using Tiles = BackwardTiles<kHeadSize>;
  constexpr int kRowTiles = Tiles::kRowTiles, kColumnTiles = Tiles::kStrip / 8;
  const AttentionShape& shape = arguments.shape;
  const int32_t first_key = tile_key + strip;
  if (first_key >= shape.length) return;
  if (shape.causal && first_key >= first_query + 16 * kRowTiles) return;  // none is visible
  float p[kRowTiles][kColumnTiles][4], ds[kRowTiles][kColumnTiles][4];
  MultiplyRows<kHeadSize>(p, q, own_row, k, strip);
  MaskScores(p, first_query, first_key, shape);
  MultiplyRows<kHeadSize>(ds, dy, own_row, v, strip);
  const float scale = arguments.scale * kLog2E;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float probability = PowerOf2(p[r][n][i] * scale - rows.log_sum[r][i / 2]);
        ds[r][n][i] = probability * (ds[r][n][i] - rows.delta[r][i / 2]);
      }
    }
  }
  MultiplyColumns<kHeadSize>(dq, ds, k, strip);
}

template <int kHeadSize>
__global__ void __launch_bounds__(BackwardBlock<kHeadSize>::kThreads,
                                  BackwardTiles<kHeadSize>::kBlocks)
    FlashQueryGradients(BackwardArguments arguments) {
  using Block = BackwardBlock<kHeadSize>;
  constexpr int kVisited = Block::Tiles::kVisited, kRowTiles = Block::Tiles::kRowTiles;
  const AttentionShape& shape = arguments.shape;
  const BlockPlace place =
      PlaceOfBlock(blockIdx.x, shape, TileCount(shape.length, Block::kRows), shape.causal);
  const HeadRows rows(arguments, place);
  auto* const q = reinterpret_cast<Bf16*>(DynamicShared());
  Bf16* const dy = q + Block::kOwned;
  Bf16* const k = dy + Block::kOwned;
  Bf16* const v = k + 2 * Block::kTile;
  const auto load_keys = [&](int32_t tile) {
    LoadTile<kVisited, kHeadSize, Block::kThreads>(k + tile % 2 * Block::kTile,
                                                   rows.q() + shape.width(), shape.packed_width(),
                                                   tile * kVisited, shape.length);
    LoadTile<kVisited, kHeadSize, Block::kThreads>(
        v + tile % 2 * Block::kTile, rows.q() + 2 * shape.width(), shape.packed_width(),
        tile * kVisited, shape.length);
    CommitCopies();
  };

  const int32_t block_query = place.tile * Block::kRows;
  LoadTile<Block::kRows, kHeadSize, Block::kThreads>(q, rows.q(), shape.packed_width(), block_query,
                                                     shape.length);
  LoadTile<Block::kRows, kHeadSize, Block::kThreads>(dy, rows.dy(), shape.width(), block_query,
                                                     shape.length);
  load_keys(0);
  const int own_row = static_cast<int>(threadIdx.x) / kWarp * Block::kWarpRows;
  const int32_t first_query = block_query + own_row;
  const LaneStatistics<kRowTiles> statistics(rows, first_query, shape.length);
  float dq[kRowTiles][kHeadSize / 8][4];
  Clear(dq);
  const TileRange tiles = KeyTiles(shape, block_query, Block::kRows, kVisited);
  for (int32_t tile = tiles.begin; tile < tiles.end; ++tile) {
    WaitForCopies<0>();
    __syncthreads();  // the tile is there, and all have left the one before
    if (tile + 1 < tiles.end) load_keys(tile + 1);
#pragma unroll 1
    for (int strip = 0; strip < kVisited; strip += Block::Tiles::kStrip) {
      VisitKeys<kHeadSize>(q, dy, own_row, first_query, k + tile % 2 * Block::kTile,
                           v + tile % 2 * Block::kTile, tile * kVisited, strip, arguments,
                           statistics, dq);
    }
  }
  Scale(dq, arguments.scale);
  StoreRows<kHeadSize>(
      dq, q, own_row,
      {rows.dq(), shape.packed_width(), first_query, shape.length, arguments.call.sum});
}

template <int kHeadSize>
cudaError_t Start(const BackwardArguments& arguments, cudaStream_t stream) noexcept {
  using Block = BackwardBlock<kHeadSize>;
  const AttentionShape& shape = arguments.shape;
  const AttentionBackwardCall<Bf16>& call = arguments.call;
  constexpr int kRowThreads = 256;
  const int64_t heads = int64_t{shape.batch} * shape.heads;
  cudaError_t error = Launch(RowDots<kHeadSize>,
                             dim3(BlocksFor(heads * shape.length * (kHeadSize / 8), kRowThreads)),
                             dim3(kRowThreads), 0, stream, shape, call.y, call.dy, call.delta);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(heads * TileCount(shape.length, Block::kRows)));
  error = Launch(FlashKeyGradients<kHeadSize>, grid, dim3(Block::kThreads),
                 Block::kTileBytes + Block::kStatisticsBytes, stream, arguments);
  if (error != cudaSuccess) return error;
  return Launch(FlashQueryGradients<kHeadSize>, grid, dim3(Block::kThreads), Block::kTileBytes,
                stream, arguments);
}

}  // namespace

cudaError_t LaunchFlashBackward(const AttentionShape& shape,
                                const AttentionBackwardCall<Bf16>& call,
                                cudaStream_t stream) noexcept {
  if (int64_t{shape.batch} * shape.length * shape.heads == 0) return cudaSuccess;
  const BackwardArguments arguments = {shape, 1.0f / sqrtf(static_cast<float>(shape.head_size)),
                                       call};
  if (shape.head_size == 64) return Start<64>(arguments, stream);
  if (shape.head_size == 128) return Start<128>(arguments, stream);
  return cudaErrorInvalidValue;
}

}  // namespace engine::cuda_ops
