#include "conv_kernel.h"

#include "simd.h"

namespace engine::cpu_ops {
namespace {

// A tile of kRows x kColumns vectors.
template <typename V, int kRows, int kColumns>
struct Tile {
  static constexpr int64_t kLanes = sizeof(V) / sizeof(float);

  V at[kRows][kColumns];

  CPU_OPS_INLINE void Fill(const float* bias) noexcept {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kColumns; ++j) {
        at[i][j] = bias != nullptr ? LoadAs<V>(bias + j * kLanes) : V{};
      }
    }
  }

  CPU_OPS_INLINE void Write(float* target, int64_t stride, bool sum) noexcept {
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < kColumns; ++j) {
        float* lanes = target + i * stride + j * kLanes;
        StoreAs(lanes, sum ? at[i][j] + LoadAs<V>(lanes) : at[i][j]);
      }
    }
  }
};

// Where a tile goes: all of its columns are written.
struct TileTarget {
  float* data;
  int64_t stride;
  bool sum;
};

// The rows of a tile are reached from a third as many pointers, each with the offsets 0, 1 and 2
// strides: one pointer a row would not fit into the registers.
template <typename V, int kRows, int kColumns>
CPU_OPS_INLINE void PanelTile(const PanelProduct& product, const float* source,
                              TileTarget target) noexcept {
  constexpr int kPointers = (kRows + 2) / 3;
  const int64_t stride = product.tiled.source_step;
  Tile<V, kRows, kColumns> tile;
  tile.Fill(product.bias);
  for (int64_t s = 0; s < product.segments; ++s) {
    const float* panel = product.panel + s * product.panel_segment;
    for (int64_t t = 0; t < product.taps; ++t) {
      const float* rows[kPointers];
#pragma GCC unroll 5
      for (int i = 0; i < kPointers; ++i) {
        rows[i] = source + s * product.source_segment + t * product.source_tap + 3 * i * stride;
      }
      for (int64_t k = 0; k < product.length; ++k) {
        V weights[kColumns];
#pragma GCC unroll 2
        for (int j = 0; j < kColumns; ++j) weights[j] = LoadAs<V>(panel + j * tile.kLanes);
        panel += product.panel_stride;
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
          const float value = rows[i / 3][(i % 3) * stride];
#pragma GCC unroll 2
          for (int j = 0; j < kColumns; ++j) tile.at[i][j] += value * weights[j];
        }
#pragma GCC unroll 5
        for (int i = 0; i < kPointers; ++i) {
          ++rows[i];
          __asm__(""
                  : "+r"(rows[i]));  // else the compiler takes a pointer and an index apart again
        }
      }
    }
  }
  tile.Write(target.data, target.stride, target.sum);
}

template <typename V, int kRows, int kColumns>
CPU_OPS_INLINE void OuterTile(const OuterProduct& product, const float* first,
                              TileTarget result) noexcept {
  Tile<V, kRows, kColumns> tile;
  tile.Fill(nullptr);
  const PositionLoop& outer = product.loops[0];
  const PositionLoop& middle = product.loops[1];
  const PositionLoop& inner = product.loops[2];
  for (int64_t a = 0; a < outer.count; ++a) {
    for (int64_t b = 0; b < middle.count; ++b) {
      const float* source = first + a * outer.source_step + b * middle.source_step;
      const float* target = product.target + a * outer.target_step + b * middle.target_step;
      for (int64_t c = 0; c < inner.count; ++c) {
        V lanes[kColumns];
#pragma GCC unroll 2
        for (int j = 0; j < kColumns; ++j) lanes[j] = LoadAs<V>(target + j * tile.kLanes);
#pragma GCC unroll 14
        for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
          for (int j = 0; j < kColumns; ++j) tile.at[i][j] += source[i] * lanes[j];
        }
        source += inner.source_step;
        target += inner.target_step;
      }
    }
  }
  tile.Write(result.data, result.stride, result.sum);
}

// A function of its own for every height and width of a tile: in one large function the compiler
// would not keep the tiles in registers.
#define CPU_OPS_TILE(V, rows, columns)                                                             \
  CPU_OPS_KERNEL void Panel##rows##x##columns##V(const PanelProduct& product, const float* source, \
                                                 TileTarget target) {                              \
    PanelTile<V, rows, columns>(product, source, target);                                          \
  }                                                                                                \
  CPU_OPS_KERNEL void Outer##rows##x##columns##V(const OuterProduct& product, const float* source, \
                                                 TileTarget target) {                              \
    OuterTile<V, rows, columns>(product, source, target);                                          \
  }
#define CPU_OPS_TILES(rows)      \
  CPU_OPS_TILE(Float8, rows, 1)  \
  CPU_OPS_TILE(Float16, rows, 1) \
  CPU_OPS_TILE(Float16, rows, 2)
CPU_OPS_TILES(1)
CPU_OPS_TILES(2)
CPU_OPS_TILES(3)
CPU_OPS_TILES(4)
CPU_OPS_TILES(5)
CPU_OPS_TILES(6)
CPU_OPS_TILES(7)
CPU_OPS_TILES(8)
CPU_OPS_TILES(9)
CPU_OPS_TILES(10)
CPU_OPS_TILES(11)
CPU_OPS_TILES(12)
CPU_OPS_TILES(13)
CPU_OPS_TILES(14)
#undef CPU_OPS_TILES
#undef CPU_OPS_TILE

template <typename Product>
using TileKernel = void (*)(const Product& product, const float* source, TileTarget target);

// By width (half a register, one or two) and height of the tile less one.
#define CPU_OPS_HEIGHTS(name, width)                                                          \
  {                                                                                           \
    name##1x##width, name##2x##width, name##3x##width, name##4x##width, name##5x##width,      \
        name##6x##width, name##7x##width, name##8x##width, name##9x##width, name##10x##width, \
        name##11x##width, name##12x##width, name##13x##width, name##14x##width                \
  }
const TileKernel<PanelProduct> kPanelKernels[3][kMaxTileRows] = {CPU_OPS_HEIGHTS(Panel, 1Float8),
                                                                 CPU_OPS_HEIGHTS(Panel, 1Float16),
                                                                 CPU_OPS_HEIGHTS(Panel, 2Float16)};
const TileKernel<OuterProduct> kOuterKernels[3][kMaxTileRows] = {CPU_OPS_HEIGHTS(Outer, 1Float8),
                                                                 CPU_OPS_HEIGHTS(Outer, 1Float16),
                                                                 CPU_OPS_HEIGHTS(Outer, 2Float16)};
#undef CPU_OPS_HEIGHTS

// Which width holds so many columns.
int64_t WidthFor(int64_t columns) noexcept {
  return columns <= kLanes / 2 ? 0 : columns <= kLanes ? 1 : 2;
}

// Runs the kernel for a tile of `rows` x `columns`. One that does not fill its registers goes by
// way of a buffer, so that nothing is written beside it.
template <typename Product>
void RunTile(const TileKernel<Product> (&kernels)[kMaxTileRows], const Product& product,
             const float* source, int64_t rows, int64_t columns, TileTarget target) noexcept {
  if (columns == PaddedColumns(columns)) {
    kernels[rows - 1](product, source, target);
    return;
  }
  alignas(64) float buffer[kMaxTileRows * kPanelColumns];
  kernels[rows - 1](product, source, {buffer, kPanelColumns, false});
  for (int64_t i = 0; i < rows; ++i) {
    float* row = target.data + i * target.stride;
    for (int64_t j = 0; j < columns; ++j) {
      row[j] = buffer[i * kPanelColumns + j] + (target.sum ? row[j] : 0.0f);
    }
  }
}

// Cuts `count` rows into tiles of nearly equal height, at most `most`, and calls body(first, rows).
template <typename Body>
void ForTiles(int64_t count, int64_t most, const Body& body) noexcept {
  const int64_t tiles = (count + most - 1) / most;
  int64_t first = 0;
  for (int64_t left = tiles; left > 0; --left) {
    const int64_t rows = (count - first + left - 1) / left;
    body(first, rows);
    first += rows;
  }
}

}  // namespace

void MultiplyPanel(const PanelProduct& product) noexcept {
  const auto& kernels = kPanelKernels[WidthFor(product.columns)];
  for (int64_t a = 0; a < product.outer.count; ++a) {
    for (int64_t b = 0; b < product.middle.count; ++b) {
      const float* source =
          product.source + a * product.outer.source_step + b * product.middle.source_step;
      float* target =
          product.target + a * product.outer.target_step + b * product.middle.target_step;
      ForTiles(product.tiled.count, product.tile_rows, [&](int64_t first, int64_t rows) {
        RunTile(
            kernels, product, source + first * product.tiled.source_step, rows, product.columns,
            {target + first * product.tiled.target_step, product.tiled.target_step, product.sum});
      });
    }
  }
}

void AddOuterProducts(const OuterProduct& product) noexcept {
  const auto& kernels = kOuterKernels[WidthFor(product.columns)];
  ForTiles(product.channels, kMaxTileRows, [&](int64_t channel, int64_t rows) {
    RunTile(kernels, product, product.source + channel, rows, product.columns,
            {product.result + channel * product.result_stride, product.result_stride, product.sum});
  });
}

}  // namespace engine::cpu_ops
