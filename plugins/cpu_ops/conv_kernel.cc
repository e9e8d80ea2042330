#include "conv_kernel.h"

#include <algorithm>
#include <span>
#include <utility>

#include "simd.h"

namespace engine::cpu_ops {
namespace {

// A tile of kRows x kColumns vectors.
template <typename V, int kRows, int kColumns>
struct Tile {
  static constexpr int64_t kLanes = kWidth<V>;

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
CPU_OPS_INLINE void ComputeTile(const PanelProduct& product, const float* source,
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
CPU_OPS_INLINE void ComputeTile(const OuterProduct& product, const float* first,
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

template <typename Product>
using TileKernel = void (*)(const Product& product, const float* source, TileTarget target);

// A function of its own for every height and width of a tile: in one large function the compiler
// would not keep the tiles in registers.
template <Registers kRegisters, typename V, int kRows, int kColumns, typename Product>
void RunKernel(const Product& product, const float* source, TileTarget target) {
  CompiledFor<kRegisters>([&](auto) CPU_OPS_INLINE_LAMBDA {
    ComputeTile<V, kRows, kColumns>(product, source, target);
  });
}

// Tiles of one width, and of each height up to `rows`.
template <typename Product>
struct TileShape {
  int64_t columns, rows;
  TileKernel<Product> kernels[kMaxTileRows];  // by height less one
};

template <typename Product, Registers kRegisters, typename V, int kColumns, int... kRows>
constexpr TileShape<Product> ShapeOf(std::integer_sequence<int, kRows...>) {
  return {kColumns * kWidth<V>,
          sizeof...(kRows),
          {RunKernel<kRegisters, V, kRows + 1, kColumns, Product>...}};
}

// Of this processor, from narrow to wide. AVX-512 has 32 registers, the others 16, which have to hold a
// tile, a row of what is read for its columns and an element of what is read for its rows.
template <typename Product>
std::span<const TileShape<Product>> Shapes() noexcept {
  using enum Registers;
  static constexpr std::make_integer_sequence<int, 14> kHigh;
  static constexpr std::make_integer_sequence<int, 6> kLow;
  static constexpr TileShape<Product> kOfAvx512[] = {ShapeOf<Product, kAvx512, Float8, 1>(kHigh),
                                                     ShapeOf<Product, kAvx512, Float16, 1>(kHigh),
                                                     ShapeOf<Product, kAvx512, Float16, 2>(kHigh)};
  static constexpr TileShape<Product> kOfAvx2[] = {ShapeOf<Product, kAvx2, Float8, 1>(kHigh),
                                                   ShapeOf<Product, kAvx2, Float8, 2>(kLow)};
  static constexpr TileShape<Product> kOfAny[] = {ShapeOf<Product, kAny, Float4, 2>(kLow)};
  if (kProcessor == kAvx512) return kOfAvx512;
  if (kProcessor == kAvx2) return kOfAvx2;
  return kOfAny;
}

// Runs the kernel for a tile of `rows` x `columns`. One that does not fill its registers goes by
// way of a buffer, so that nothing is written beside it.
template <typename Product>
void RunTile(const TileShape<Product>& shape, const Product& product, const float* source,
             int64_t rows, int64_t columns, TileTarget target) noexcept {
  const TileKernel<Product> kernel = shape.kernels[rows - 1];
  if (columns == shape.columns) return kernel(product, source, target);
  alignas(64) float buffer[kMaxTileRows * kPanelColumns];
  kernel(product, source, {buffer, kPanelColumns, false});
  for (int64_t i = 0; i < rows; ++i) {
    float* row = target.data + i * target.stride;
    for (int64_t j = 0; j < columns; ++j) {
      row[j] = buffer[i * kPanelColumns + j] + (target.sum ? row[j] : 0.0f);
    }
  }
}

// body(shape, first, columns) for the parts of so many columns that a tile can have.
template <typename Product, typename Body>
void ForParts(int64_t columns, const Body& body) noexcept {
  const std::span<const TileShape<Product>> shapes = Shapes<Product>();
  for (int64_t first = 0; first < columns;) {
    const int64_t part = std::min(columns - first, shapes.back().columns);
    const auto fits = [&](const TileShape<Product>& shape) { return part <= shape.columns; };
    body(*std::find_if(shapes.begin(), shapes.end(), fits), first, part);
    first += part;
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

int64_t MaxTileRows() noexcept {
  return Shapes<PanelProduct>().back().rows;
}

void MultiplyPanel(const PanelProduct& whole) noexcept {
  ForParts<PanelProduct>(whole.columns, [&](const auto& shape, int64_t first, int64_t columns) {
    PanelProduct product = whole;
    product.panel += first;
    if (product.bias != nullptr) product.bias += first;
    const int64_t most = std::min(product.tile_rows, shape.rows);
    for (int64_t a = 0; a < product.outer.count; ++a) {
      for (int64_t b = 0; b < product.middle.count; ++b) {
        const float* source =
            product.source + a * product.outer.source_step + b * product.middle.source_step;
        float* target =
            product.target + first + a * product.outer.target_step + b * product.middle.target_step;
        ForTiles(product.tiled.count, most, [&](int64_t row, int64_t rows) {
          RunTile(
              shape, product, source + row * product.tiled.source_step, rows, columns,
              {target + row * product.tiled.target_step, product.tiled.target_step, product.sum});
        });
      }
    }
  });
}

void AddOuterProducts(const OuterProduct& whole) noexcept {
  ForParts<OuterProduct>(whole.columns, [&](const auto& shape, int64_t first, int64_t columns) {
    OuterProduct product = whole;
    product.target += first;
    ForTiles(product.channels, shape.rows, [&](int64_t channel, int64_t rows) {
      RunTile(shape, product, product.source + channel, rows, columns,
              {product.result + channel * product.result_stride + first, product.result_stride,
               product.sum});
    });
  });
}

}  // namespace engine::cpu_ops
