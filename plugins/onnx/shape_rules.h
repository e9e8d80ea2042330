// What nodes do to shapes, by the formulas of ONNX's operator pages: the same for constants as for
// what a sample makes.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "model_file.h"
#include "tensor.h"

namespace engine::onnx {

// What a Slice node takes of an axis.
struct SliceRange {
  int64_t axis, begin, step, count;
};
// Of the axes that the node names; starts, ends, axes and steps are constants.
Result<std::vector<SliceRange>> SliceRanges(const Node& node, std::span<const Tensor* const> inputs,
                                            const Dims& shape);

// What a Reshape, Squeeze, Unsqueeze or Flatten makes of a shape; `given` is its list, or null.
Result<Dims> ReshapedShape(const Node& node, const Dims& shape, const Tensor* given);
// The dimension that each one of a Transpose comes from.
Result<Dims> TransposedOrder(const Node& node, size_t rank);
// Extents of the parts of a Split.
Result<Dims> SplitExtents(const Node& node, int64_t extent, const Tensor* given);
// NumPy's; kBadData.
Result<Dims> BroadcastShape(const Node& node, const Dims& a, const Dims& b);
// The list that is an input of later opsets and was an attribute of earlier ones.
Dims ListOf(const Node& node, std::string_view attribute, const Tensor* input,
            const Dims& otherwise = {});
// Of a dimension counted from the end if negative; kBadData when there is none.
Result<int64_t> AxisOf(const Node& node, int64_t axis, size_t rank);
// Of each dimension whether a reduction reduces it; `given` is its list, or null.
Result<std::vector<bool>> ReducedDims(const Node& node, const Tensor* given, size_t rank);

// The elements of a tensor in the order of a walk through `extents`.
struct Positions {
  int64_t first = 0;
  Dims extents, strides;
  Dims index = {};  // of the element that is next

  // Of `x` broadcast to `shape`.
  static Positions Of(const Tensor& x, const Dims& shape);
  // Where the next element of the walk is in x.
  size_t Next();
};

}  // namespace engine::onnx
