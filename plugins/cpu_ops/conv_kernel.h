// The two products that a convolution over channels-last tensors is made of. Both keep a tile of
// their result in registers, and both walk positions (of a sample, a row and a column) by strides,
// so that neither copies windows nor sees padding.
#pragma once

#include <cstdint>

namespace engine::cpu_ops {

// Columns of a packed panel of weights: two registers of 16 floats.
constexpr int64_t kPanelColumns = 32;
// What is read for so many columns: a half register, or whole ones.
constexpr int64_t PaddedColumns(int64_t columns) noexcept {
  return columns <= 8 ? 8 : (columns + 15) / 16 * 16;
}
// Rows of a tile in registers, at most: with two columns of registers these are 28 of AVX-512's 32.
constexpr int64_t kMaxTileRows = 14;
// Of tiles of this processor's full width.
int64_t MaxTileRows() noexcept;

// One level of a loop over positions: what a step adds to the two pointers, in elements.
struct PositionLoop {
  int64_t count = 1;
  int64_t source_step = 0;
  int64_t target_step = 0;
};

// For each position p, and each column j < columns:
//   target[p][j] (+)= bias[j] + sum over s < segments, t < taps, k < length of
//                     source[p][s * source_segment + t * source_tap + k] *
//                     panel[s * panel_segment + (t * length + k) * panel_stride + j]
// The panel is readable up to the padded columns; so is the bias.
struct PanelProduct {
  const float* source = nullptr;
  float* target = nullptr;
  PositionLoop outer, middle, tiled;  // `tiled`: its positions become the rows of tiles
  int64_t tile_rows = kMaxTileRows;   // at most
  int64_t segments = 1, source_segment = 0;
  int64_t taps = 1, source_tap = 0, length = 0;
  const float* panel = nullptr;
  int64_t panel_segment = 0, panel_stride = kPanelColumns;
  const float* bias = nullptr;  // null: none
  int64_t columns = kPanelColumns;
  bool sum = false;  // add to the target
};

void MultiplyPanel(const PanelProduct& product) noexcept;

// For each channel c < channels and column j < columns:
//   result[c * result_stride + j] (+)= sum over positions p of source[p][c] * target[p][j]
// The target is readable up to the padded columns. `loops` are best with the longest
// last. Without positions the sum is 0.
struct OuterProduct {
  const float* source = nullptr;
  const float* target = nullptr;
  PositionLoop loops[3];
  float* result = nullptr;
  int64_t result_stride = 0;
  int64_t channels = 0;
  int64_t columns = kPanelColumns;
  bool sum = false;  // add to the result
};

void AddOuterProducts(const OuterProduct& product) noexcept;

}  // namespace engine::cpu_ops
