// Nodes that move elements, or only call their dimensions otherwise: those make no op.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lowering.h"
#include "shape_rules.h"

namespace engine::onnx {
namespace {

Status Samples(const Node& node) {
  return node.Unsupported("mixes samples of a batch");
}

Status LowerTranspose(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Dims order, TransposedOrder(node, x.layout.dims.size()));
  x.layout.Permute(order);
  return Give(lowering, node, std::move(x));
}

Status LowerReshape(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const Dims shape, ReshapedShape(node, x.Shape(), given.get()));
  if (!x.layout.Reshape(shape)) {
    ENGINE_ASSIGN_OR_RETURN(x, lowering.OneAxisEach(node, x, true));
    // Behind the samples all is one axis now, which splits in any way.
    std::vector<int> order;
    for (const std::vector<int>& dim : x.layout.dims) {
      order.insert(order.end(), dim.begin(), dim.end());
    }
    if (order != x.layout.MemoryOrder()) return Samples(node);
    Dims& axes = x.layout.axes;
    const std::ptrdiff_t first = x.layout.batched ? 1 : 0;
    const int64_t behind = Count({axes.begin() + first, axes.end()});
    axes.resize(static_cast<size_t>(first));
    axes.push_back(behind);
    x.layout.dims = {x.layout.MemoryOrder()};
    if (!x.layout.Reshape(shape)) return Samples(node);
  }
  return Give(lowering, node, std::move(x));
}

Status LowerDepthToSpace(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  const Dims shape = x.Shape();
  const int64_t b = node.Int("blocksize", 1);
  const bool to_space = node.type() == "DepthToSpace";
  if (shape.size() != 4 || b < 1 || b > 1024 || shape[to_space ? 1 : 2] % b != 0) {
    return node.Damaged("has no blocks of %lld", static_cast<long long>(b));
  }
  const auto [n, c, h, w] = std::tuple(shape[0], shape[1], shape[2], shape[3]);
  const bool crd = node.Text("mode", "DCR") == "CRD";
  const Dims split = !to_space ? Dims{n, c, h / b, b, w / b, b}
                     : crd     ? Dims{n, c / (b * b), b, b, h, w}
                               : Dims{n, b, b, c / (b * b), h, w};
  const Dims order = !to_space ? Dims{0, 3, 5, 1, 2, 4}
                     : crd     ? Dims{0, 1, 4, 2, 5, 3}
                               : Dims{0, 3, 4, 1, 5, 2};
  const Dims result =
      to_space ? Dims{n, c / (b * b), h * b, w * b} : Dims{n, c * b * b, h / b, w / b};
  if (!x.layout.Reshape(split)) {
    ENGINE_ASSIGN_OR_RETURN(x, lowering.OneAxisEach(node, x, true));
    if (!x.layout.Reshape(split)) return Samples(node);
  }
  x.layout.Permute(order);
  if (!x.layout.Reshape(result)) return Samples(node);
  return Give(lowering, node, std::move(x));
}

// ---- Along one dimension

// Dimension `dim` is one axis: its parts move together where they are not.
Result<Value> Joined(Lowering& lowering, const Node& node, const Value& x, int64_t dim) {
  const std::vector<int>& axes = x.layout.dims[dim];
  const auto is_samples = [&](int axis) { return x.layout.IsSamples(axis); };
  if (std::ranges::any_of(axes, is_samples)) return Samples(node);
  return axes.size() < 2 ? x : lowering.OneAxisEach(node, x, false);
}

// With an axis even if the dimension has an extent of 1: it lies in front, behind the samples.
Result<Value> WithAxis(Lowering& lowering, const Node& node, const Value& x, int64_t dim) {
  ENGINE_ASSIGN_OR_RETURN(Value joined, Joined(lowering, node, x, dim));
  Layout& layout = joined.layout;
  if (!layout.dims[dim].empty()) return joined;
  const int place = layout.batched ? 1 : 0;
  for (std::vector<int>& other : layout.dims) {
    for (int& axis : other) axis += axis >= place ? 1 : 0;
  }
  layout.axes.insert(layout.axes.begin() + place, 1);
  layout.dims[dim] = {place};
  return joined;
}

// An axis of 1 is none.
void DropAxis(Layout* layout, int64_t dim) {
  const int axis = layout->dims[dim][0];
  if (layout->axes[axis] != 1) return;
  layout->axes.erase(layout->axes.begin() + axis);
  layout->dims[dim].clear();
  for (std::vector<int>& other : layout->dims) {
    for (int& later : other) later -= later > axis ? 1 : 0;
  }
}

// One op along dimension `dim`, which then has this extent. Where a tensor has more axes than the
// engine's can have, neighbours of the one that matters are put together.
Result<Value> EmitAlong(Lowering& lowering, const Node& node, const Value& x, int64_t dim,
                        std::string_view op, Attributes attributes, int64_t extent) {
  ENGINE_ASSIGN_OR_RETURN(const Value joined, WithAxis(lowering, node, x, dim));
  const int axis = joined.layout.dims[dim][0];
  Groups groups;
  for (const int other : joined.layout.MemoryOrder()) {
    const bool alone = other == axis || other == axis + 1 || (joined.layout.batched && other < 2);
    if (alone || groups.empty() || joined.layout.axes.size() <= size_t{kMaxDims}) {
      groups.emplace_back();
    }
    groups.back().push_back(other);
  }
  ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Arrange(node, joined, groups));
  const auto place = std::ranges::find(groups, std::vector{axis}) - groups.begin();
  attributes.push_back(kit::Int("axis", place));
  Value made{.layout = joined.layout};
  ENGINE_ASSIGN_OR_RETURN(made.engine, lowering.Emit(node.name(), op, {input}, attributes));
  made.layout.axes[axis] = extent;
  DropAxis(&made.layout, dim);
  return made;
}

Result<Value> Sliced(Lowering& lowering, const Node& node, const Value& x,
                     const SliceRange& range) {
  const int64_t extent = x.Shape()[range.axis];
  if (range.begin == 0 && range.step == 1 && range.count == extent) return x;
  if (range.count < 1) return node.Damaged("leaves no elements");
  // Backwards, position -1 is the last one: the end is counted from behind the first instead.
  const int64_t end = range.begin + range.count * range.step;
  return EmitAlong(lowering, node, x, range.axis, "slice",
                   {kit::Int("begin", range.begin), kit::Int("end", end < 0 ? -extent - 1 : end),
                    kit::Int("step", range.step)},
                   range.count);
}

Status LowerSlice(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  std::vector<std::shared_ptr<const Tensor>> lists(1);
  for (size_t i = 1; i < node.input_count(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(lists.emplace_back(), lowering.Constant(node, i));
  }
  std::vector<const Tensor*> borrowed;
  for (const auto& list : lists) borrowed.push_back(list.get());
  ENGINE_ASSIGN_OR_RETURN(const auto ranges, SliceRanges(node, borrowed, x.Shape()));
  for (const SliceRange& range : ranges) {
    ENGINE_ASSIGN_OR_RETURN(x, Sliced(lowering, node, x, range));
  }
  return Give(lowering, node, std::move(x));
}

Status LowerSplit(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  const Dims shape = x.Shape();
  ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, node.Int("axis", 0), shape.size()));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const Dims extents, SplitExtents(node, shape[axis], given.get()));
  ENGINE_ASSIGN_OR_RETURN(x, Joined(lowering, node, x, axis));
  int64_t begin = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(Value part, Sliced(lowering, node, x, {axis, begin, 1, extents[i]}));
    lowering.Set(node.output(i), std::move(part));
    begin += extents[i];
  }
  return {};
}

// Token vectors: rows of a parameter that samples choose.
Status LowerEmbedding(Lowering& lowering, const Node& node, const Value& table,
                      const Value& tokens) {
  const Dims shape = table.Shape();
  if (table.parameter.empty() || shape.size() != 2 || node.Int("axis", 0) != 0) {
    return node.Unsupported(
        "picks by what depends on samples; only rows of a matrix of parameters can be");
  }
  const Layout& layout = tokens.layout;
  ENGINE_ASSIGN_OR_RETURN(const ModelValue input,
                          lowering.Arrange(node, tokens, OneEach(layout, layout.MemoryOrder(), 0)));
  const bool natural = table.layout.dims == Groups{{0}, {1}};
  ENGINE_ASSIGN_OR_RETURN(
      const ModelValue made,
      lowering.EmitLayer(node, "embedding", input, table,
                         {table.layout.dims[0], table.layout.dims[1]}, natural, nullptr,
                         {kit::Int("vocabulary", shape[0]), kit::Int("width", shape[1])}));
  Value y{.engine = made, .layout = layout};
  y.layout.dims.push_back({static_cast<int>(y.layout.axes.size())});
  y.layout.axes.push_back(shape[1]);
  return Give(lowering, node, std::move(y));
}

Status LowerGather(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Value chosen, lowering.Input(node, 1));
  if (chosen.constant == nullptr) return LowerEmbedding(lowering, node, x, chosen);
  const Dims shape = x.Shape();
  ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, node.Int("axis", 0), shape.size()));
  Dims indices = chosen.constant->Ints();
  if (indices.empty()) return node.Damaged("picks nothing");
  for (int64_t& index : indices) {
    if (index < 0) index += shape[axis];
    if (index >= 0 && index < shape[axis]) continue;
    return node.Damaged("picks an element that is not there");
  }
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t step = count > 1 ? indices[1] - indices[0] : 1;
  bool even = step != 0;
  for (int64_t i = 1; i < count; ++i) even = even && indices[i] - indices[i - 1] == step;
  if (even) {
    ENGINE_ASSIGN_OR_RETURN(x, Sliced(lowering, node, x, {axis, indices[0], step, count}));
  } else {
    ENGINE_ASSIGN_OR_RETURN(x, EmitAlong(lowering, node, x, axis, "gather",
                                         {IntsAttribute("indices", indices)}, count));
  }
  Dims result = x.Shape();
  result.erase(result.begin() + axis);
  const Dims& picked = chosen.constant->dims;
  result.insert(result.begin() + axis, picked.begin(), picked.end());
  if (!x.layout.Reshape(result)) return Samples(node);
  return Give(lowering, node, std::move(x));
}

// In the order of memory of the first batched input.
Status LowerConcat(Lowering& lowering, const Node& node) {
  std::vector<Value> values;
  int64_t extent = 0, dim = 0;
  for (size_t i = 0; i < node.input_count(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(const Value value, lowering.Input(node, i));
    const Dims shape = value.Shape();
    ENGINE_ASSIGN_OR_RETURN(dim, AxisOf(node, node.Int("axis", 0), shape.size()));
    if (i > 0 && shape.size() != values[0].layout.dims.size()) {
      return node.Damaged("joins tensors of different ranks");
    }
    extent += shape[dim];
    values.push_back(value);
  }
  if (values.empty()) return node.Damaged("has no inputs");
  if (values.size() == 1) return Give(lowering, node, values[0]);
  for (Value& value : values) {
    ENGINE_ASSIGN_OR_RETURN(value, lowering.OneAxisEach(node, value, false));
    ENGINE_ASSIGN_OR_RETURN(value, WithAxis(lowering, node, value, dim));
  }
  const auto batched =
      std::ranges::find_if(values, [](const Value& v) { return v.layout.batched; });
  Layout layout = (batched != values.end() ? *batched : values[0]).layout;
  std::vector<ModelValue> left;
  for (const Value& value : values) {
    Groups groups(layout.axes.size());
    for (size_t i = 0; i < layout.dims.size(); ++i) {
      const std::vector<int>&wanted = layout.dims[i], &own = value.layout.dims[i];
      if (!own.empty() && own.size() != wanted.size()) {
        return node.Unsupported("joins different shapes");
      }
      for (size_t j = 0; j < own.size(); ++j) {
        if (own[j] >= 0 && wanted[j] >= 0) groups[wanted[j]] = {own[j]};
      }
    }
    ENGINE_ASSIGN_OR_RETURN(left.emplace_back(), lowering.Arrange(node, value, groups));
  }
  // An op has so many inputs at most: what it gives is the first of the next one.
  const int axis = layout.dims[dim][0];
  while (left.size() > 1) {
    const auto count = static_cast<std::ptrdiff_t>(std::min(left.size(), size_t{kMaxOpInputs}));
    const std::vector<ModelValue> now(left.begin(), left.begin() + count);
    left.erase(left.begin(), left.begin() + count - 1);
    ENGINE_ASSIGN_OR_RETURN(left[0],
                            lowering.Emit(node.name(), "concat", now, {kit::Int("axis", axis)}));
  }
  layout.axes[axis] = extent;
  return Give(lowering, node, left[0], std::move(layout));
}

constexpr int64_t kMostPads = int64_t{1} << 30;

Status LowerPad(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const auto value, lowering.Constant(node, 2));
  const Dims pads = ListOf(node, "pads", given.get());
  const size_t rank = x.layout.dims.size();
  if (node.HasInput(3)) return node.Unsupported("has a list of axes; export it with opset 17");
  const auto is_huge = [](int64_t pad) { return pad < -kMostPads || pad > kMostPads; };
  if (pads.size() != 2 * rank || std::ranges::any_of(pads, is_huge) ||
      (value != nullptr && value->count() != 1)) {
    return node.Damaged("has not two pads for each axis, or no number to pad with");
  }
  const auto begin = [&](size_t i) { return std::max<int64_t>(pads[i], 0); };
  const auto end = [&](size_t i) { return std::max<int64_t>(pads[i + rank], 0); };
  for (size_t i = 0; i < rank; ++i) {  // negative pads cut
    const int64_t first = begin(i) - pads[i], last = end(i) - pads[i + rank];
    if (first + last == 0) continue;
    const SliceRange range = {static_cast<int64_t>(i), first, 1, x.Shape()[i] - first - last};
    ENGINE_ASSIGN_OR_RETURN(x, Sliced(lowering, node, x, range));
  }
  for (size_t i = 0; i < rank; ++i) {
    if (begin(i) + end(i) == 0) continue;
    ENGINE_ASSIGN_OR_RETURN(x, WithAxis(lowering, node, x, static_cast<int64_t>(i)));
  }
  Layout layout = x.layout;
  Dims before(layout.axes.size(), 0), after = before;
  for (size_t i = 0; i < rank; ++i) {
    if (begin(i) + end(i) == 0) continue;
    const int axis = layout.dims[i][0];
    before[axis] = begin(i);
    after[axis] = end(i);
    layout.axes[axis] += begin(i) + end(i);
  }
  if (layout.axes == x.layout.axes) return Give(lowering, node, std::move(x));
  ENGINE_ASSIGN_OR_RETURN(
      const ModelValue input,
      lowering.Arrange(node, x, OneEach(layout, layout.MemoryOrder(), layout.axes.size())));
  const size_t samples = layout.batched ? 1 : 0;
  before.erase(before.begin(), before.begin() + static_cast<std::ptrdiff_t>(samples));
  after.erase(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(samples));
  const std::string mode = node.Text("mode", "constant");
  return GiveOp(
      lowering, node, "pad", {input},
      {IntsAttribute("before", before), IntsAttribute("after", after),
       kit::Float("value", value != nullptr ? value->values[0] : 0), kit::Word("mode", mode)},
      std::move(layout));
}

// Samples that share a parameter need no copy of it; other dimensions are copied.
Status LowerExpand(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  Dims before = x.Shape();
  ENGINE_ASSIGN_OR_RETURN(const Dims shape,
                          BroadcastShape(node, before, ListOf(node, "shape", given.get())));
  x.layout.dims.insert(x.layout.dims.begin(), shape.size() - before.size(), {});
  before.insert(before.begin(), shape.size() - before.size(), 1);
  if (!shape.empty() && before[0] == 1 && shape[0] == lowering.samples() && !x.layout.batched &&
      x.layout.dims[0].empty()) {
    x.layout.dims[0] = {kShared};
    before[0] = shape[0];
  }
  if (before != shape) {
    Dims wanted;
    Groups groups;
    Layout layout = Layout::RowMajor({}, x.layout.batched, x.layout.samples);
    for (size_t i = 0; i < shape.size(); ++i) {
      std::vector<int>& dim = layout.dims.emplace_back();
      if (x.layout.dims[i] == std::vector{kShared}) {
        dim = {kShared};
        continue;
      }
      if (shape[i] == 1 && x.layout.dims[i].empty()) continue;
      groups.push_back(x.layout.dims[i]);
      dim.push_back(static_cast<int>(layout.axes.size()));
      layout.axes.push_back(shape[i]);
      if (!x.layout.batched || dim[0] != 0) wanted.push_back(shape[i]);
    }
    ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Arrange(node, x, groups));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue made, lowering.Emit(node.name(), "expand", {input},
                                                                 {IntsAttribute("shape", wanted)}));
    x = Value{.engine = made, .layout = std::move(layout)};
  }
  return Give(lowering, node, std::move(x));
}

constexpr HandlerEntry kMoveHandlers[] = {
    {"Concat", LowerConcat},       {"DepthToSpace,SpaceToDepth", LowerDepthToSpace},
    {"Expand", LowerExpand},       {"Flatten,Reshape,Squeeze,Unsqueeze", LowerReshape},
    {"Gather", LowerGather},       {"Pad", LowerPad},
    {"Slice", LowerSlice},         {"Split", LowerSplit},
    {"Transpose", LowerTranspose},
};

}  // namespace

std::span<const HandlerEntry> MoveHandlers() {
  return kMoveHandlers;
}

}  // namespace engine::onnx
