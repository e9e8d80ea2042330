#include "shape_rules.h"

#include <algorithm>
#include <numeric>

namespace engine::onnx {

Result<int64_t> AxisOf(const Node& node, int64_t axis, size_t rank) {
  const auto dims = static_cast<int64_t>(rank);
  if (axis >= -dims && axis < dims) return axis < 0 ? axis + dims : axis;
  return node.Damaged("names axis %lld of a tensor with %zu", static_cast<long long>(axis), rank);
}

Dims ListOf(const Node& node, std::string_view attribute, const Tensor* input,
            const Dims& otherwise) {
  return input != nullptr ? input->Ints() : node.Ints(attribute, otherwise);
}

Result<std::vector<bool>> ReducedDims(const Node& node, const Tensor* given, size_t rank) {
  const Dims axes = ListOf(node, "axes", given);
  std::vector<bool> reduced(rank, axes.empty() && node.Int("noop_with_empty_axes", 0) == 0);
  for (const int64_t one : axes) {
    ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, one, rank));
    reduced[axis] = true;
  }
  return reduced;
}

Result<Dims> BroadcastShape(const Node& node, const Dims& a, const Dims& b) {
  Dims shape = a.size() >= b.size() ? a : b;
  const Dims& other = a.size() >= b.size() ? b : a;
  const size_t lead = shape.size() - other.size();
  for (size_t i = 0; i < other.size(); ++i) {
    int64_t& extent = shape[lead + i];
    if (extent != other[i] && extent != 1 && other[i] != 1) {
      return node.Damaged("its inputs do not broadcast: %lld and %lld",
                          static_cast<long long>(extent), static_cast<long long>(other[i]));
    }
    if (extent == 1) extent = other[i];
  }
  return shape;
}

namespace {

// The shape with extents of 1 at the axes of the list, counted in the result.
Result<Dims> Unsqueezed(const Node& node, const Dims& shape, const Dims& axes) {
  Dims result(shape.size() + axes.size(), 0);
  for (const int64_t given : axes) {
    ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, given, result.size()));
    result[axis] = 1;
  }
  if (std::ranges::count(result, 0) != static_cast<std::ptrdiff_t>(shape.size())) {
    return node.Damaged("names an axis twice");
  }
  auto next = shape.begin();
  for (int64_t& extent : result) {
    if (extent == 0) extent = *next++;
  }
  return result;
}

Result<Dims> Squeezed(const Node& node, const Dims& shape, const Dims& axes) {
  std::vector<bool> leaves(shape.size(), false);
  for (size_t i = 0; axes.empty() && i < shape.size(); ++i) leaves[i] = shape[i] == 1;
  for (const int64_t given : axes) {
    ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, given, shape.size()));
    if (shape[axis] != 1) {
      return node.Damaged("squeezes an axis of %lld elements", static_cast<long long>(shape[axis]));
    }
    leaves[axis] = true;
  }
  Dims result;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!leaves[i]) result.push_back(shape[i]);
  }
  return result;
}

// -1 is what is left; 0 is the extent of now, unless `allowzero`.
Result<Dims> Filled(const Node& node, const Dims& shape, Dims wanted) {
  for (size_t i = 0; i < wanted.size() && i < shape.size(); ++i) {
    if (wanted[i] == 0 && node.Int("allowzero", 0) == 0) wanted[i] = shape[i];
  }
  if (const auto left = std::ranges::find(wanted, -1); left != wanted.end()) {
    *left = 1;
    const int64_t known = CheckedCount(wanted);
    if (known > 0) *left = Count(shape) / known;
  }
  if (CheckedCount(wanted) == Count(shape)) return wanted;
  return node.Damaged("%lld elements have not the shape that it gives them",
                      static_cast<long long>(Count(shape)));
}

}  // namespace

Result<Dims> ReshapedShape(const Node& node, const Dims& shape, const Tensor* given) {
  if (node.type() == "Flatten") {
    const auto rank = static_cast<int64_t>(shape.size());
    int64_t axis = node.Int("axis", 1);
    if (axis < 0) axis += rank;
    if (axis < 0 || axis > rank) return AxisOf(node, rank, shape.size()).status();
    return Dims{Count({shape.begin(), shape.begin() + axis}),
                Count({shape.begin() + axis, shape.end()})};
  }
  if (node.type() == "Squeeze") return Squeezed(node, shape, ListOf(node, "axes", given));
  if (node.type() == "Unsqueeze") return Unsqueezed(node, shape, ListOf(node, "axes", given));
  return Filled(node, shape, ListOf(node, "shape", given));
}

Result<Dims> TransposedOrder(const Node& node, size_t rank) {
  Dims natural(rank);
  std::iota(natural.begin(), natural.end(), 0);
  Dims order = node.Ints("perm", {natural.rbegin(), natural.rend()}), sorted = order;
  std::ranges::sort(sorted);
  if (sorted == natural) return order;
  return node.Damaged("has an order of other axes");
}

Result<Dims> SplitExtents(const Node& node, int64_t extent, const Tensor* given) {
  Dims extents = ListOf(node, "split", given);
  if (extents.empty()) {
    // Equal parts; the last may be smaller (opset 18).
    const auto parts = static_cast<int64_t>(node.output_count());
    const int64_t part = (extent + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) extents.push_back(std::min(part, extent - i * part));
  }
  int64_t left = extent;
  for (const int64_t part : extents) left = part > 0 && part <= left ? left - part : -1;
  if (left == 0 && extents.size() == node.output_count()) return extents;
  return node.Damaged("its parts are not the %lld elements of the axis",
                      static_cast<long long>(extent));
}

Result<std::vector<SliceRange>> SliceRanges(const Node& node, std::span<const Tensor* const> inputs,
                                            const Dims& shape) {
  const auto input = [&](size_t i) { return i < inputs.size() ? inputs[i] : nullptr; };
  if (input(1) == nullptr || input(2) == nullptr) {
    return node.Damaged("needs starts and ends as inputs");
  }
  const Dims begins = input(1)->Ints(), ends = input(2)->Ints();
  Dims all(begins.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  const Dims axes = input(3) != nullptr ? input(3)->Ints() : all;
  const Dims steps = input(4) != nullptr ? input(4)->Ints() : Dims(begins.size(), 1);
  if (ends.size() != begins.size() || axes.size() != begins.size() ||
      steps.size() != begins.size()) {
    return node.Damaged("its lists have different lengths");
  }
  std::vector<SliceRange> ranges;
  for (size_t i = 0; i < begins.size(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, axes[i], shape.size()));
    const int64_t extent = shape[axis];
    // A larger step leaves the axis as well, and does not overflow.
    const int64_t step = std::clamp(steps[i], -extent - 1, extent + 1);
    if (step == 0) return node.Damaged("has a step of 0");
    if (std::ranges::find(ranges, axis, &SliceRange::axis) != ranges.end()) {
      return node.Damaged("cuts axis %lld twice", static_cast<long long>(axis));
    }
    const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? extent : extent - 1;
    const auto inside = [&](int64_t position) {
      return std::clamp(position < 0 ? position + extent : position, lowest, highest);
    };
    // INT64_MIN + extent is still below 0, so it is the lowest.
    const int64_t begin = inside(begins[i]), distance = inside(ends[i]) - begin;
    const int64_t count = (distance + step - (step > 0 ? 1 : -1)) / step;
    ranges.push_back({axis, begin, step, std::max<int64_t>(count, 0)});
  }
  return ranges;
}

Positions Positions::Of(const Tensor& x, const Dims& shape) {
  Positions positions{0, shape, Dims(shape.size(), 0)};
  int64_t stride = 1;
  for (size_t i = 1; i <= x.dims.size() && i <= shape.size(); ++i) {
    const int64_t extent = x.dims[x.dims.size() - i];
    if (extent != 1) positions.strides[shape.size() - i] = stride;
    stride *= extent;
  }
  return positions;
}

size_t Positions::Next() {
  index.resize(extents.size(), 0);
  const int64_t here = first;
  for (size_t i = extents.size(); i-- > 0;) {
    first += strides[i];
    if (++index[i] < extents[i]) break;
    first -= strides[i] * extents[i];
    index[i] = 0;
  }
  return static_cast<size_t>(here);
}

}  // namespace engine::onnx
