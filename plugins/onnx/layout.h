// Where the elements of an ONNX tensor lie in the engine's, so that transposing and reshaping move none
// of them as long as nobody needs them elsewhere.
//
// A tensor of the engine is an array of axes in the order of memory; axis 0 is that of samples where
// it is batched. A dimension of the ONNX tensor is a list of such axes, outermost first:
//
//   an image (N, C, H, W), channels last        axes N H W C      dims [N] [C] [H] [W]
//   its tokens, flatten(2).transpose(1, 2)      axes N H W C      dims [N] [H W] [C]
//   (N * heads, T, D) of a projection           axes N T heads D  dims [N heads] [T] [D]
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor.h"

namespace engine::onnx {

// In a dimension: samples that share what there is once. (A parameter that is expanded to a batch.)
constexpr int kShared = -1;
// In a Column: the tensor has an extent of 1 there.
constexpr int kAbsent = -2;

struct Layout {
  Dims axes;  // extents; of samples as many as shape arithmetic counts on. None is 1 but that
  bool batched = false;
  std::vector<std::vector<int>> dims;
  int64_t samples = 1;  // what kShared counts

  // Each dimension an axis of its own, but those of 1; if batched, the first is that of samples.
  static Layout RowMajor(const Dims& shape, bool batched, int64_t samples);

  int64_t Extent(int axis) const { return axis == kShared ? samples : axes[axis]; }
  Dims Shape() const;
  int rank() const { return static_cast<int>(dims.size()); }
  bool IsSamples(int axis) const { return axis == kShared || (batched && axis == 0); }

  // Axis `axis` becomes two, of which the inner one has this extent.
  void Split(int axis, int64_t inner);
  // Dimension i becomes the dimension order[i] of now.
  void Permute(std::span<const int64_t> order);
  // The elements in the same order, as other dimensions. False, and nothing has changed, where that
  // is no matter of splitting axes: their order in memory is another.
  bool Reshape(const Dims& shape);
  // Axes in another order, which names each: what memory is after a transposition.
  Layout Reordered(std::span<const int> order) const;
  // All axes: those of samples, then the others dimension by dimension.
  std::vector<int> LogicalOrder() const;
  std::vector<int> MemoryOrder() const;
};

// What several tensors have at one place of a dimension that broadcasts.
struct Column {
  std::vector<int> axis;  // of each tensor: an axis, kShared or kAbsent
  int64_t extent = 1;
  bool samples = false;  // it is the axis of samples of one of them

  bool InMemory() const {
    return std::any_of(axis.begin(), axis.end(), [](int one) { return one >= 0; });
  }
  // Whether the same tensors have memory there.
  bool IsLike(const Column& other) const {
    return std::ranges::equal(axis, other.axis, [](int a, int b) { return (a >= 0) == (b >= 0); });
  }
};

// Splits axes until all tensors have the same where they broadcast, as NumPy does, without the last
// `skipped` dimensions; the columns of each dimension, outermost first. False where shapes do not fit,
// or split differently (which a transposition to the logical order mends).
bool Align(std::span<Layout* const> tensors, int skipped, std::vector<std::vector<Column>>* dims);

}  // namespace engine::onnx
