// Nodes that move elements, or only call their dimensions otherwise: those make no op.
#include <algorithm>
#include <numeric>
#include <utility>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lowering.h"
#include "shape_rules.h"

namespace engine::onnx {
namespace {

Status Samples(const Node& node) {
  return node.Error(StatusCode::kUnsupported, "mixes samples of a batch");
}

Status LowerTranspose(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  Dims reversed(x.layout.dims.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  const Dims order = node.Ints("perm", reversed);
  Dims sorted = order;
  std::ranges::sort(sorted);
  std::ranges::reverse(reversed);
  if (sorted != reversed) return node.Error(StatusCode::kBadData, "has an order of other axes");
  x.layout.Permute(order);
  lowering.Set(node.output(0), std::move(x));
  return {};
}

Status LowerReshape(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const Dims shape, ReshapedShape(node, x.Shape(), given.get()));
  if (!x.layout.Reshape(shape)) {
    ENGINE_ASSIGN_OR_RETURN(x, lowering.Contiguous(node, x));
    // Behind the samples all is one axis now, which splits in any way.
    const bool batched = x.layout.batched;
    Layout flat{.axes = {}, .batched = batched, .dims = {{}}, .samples = x.layout.samples};
    const Dims& axes = x.layout.axes;
    if (batched) flat.axes.push_back(axes[0]);
    flat.axes.push_back(Count({axes.begin() + (batched ? 1 : 0), axes.end()}));
    flat.dims[0] = flat.MemoryOrder();
    x.layout = std::move(flat);
    if (!x.layout.Reshape(shape)) return Samples(node);
  }
  lowering.Set(node.output(0), std::move(x));
  return {};
}

Status LowerDepthToSpace(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  const Dims shape = x.Shape();
  const int64_t b = node.Int("blocksize", 1);
  const bool to_space = node.type() == "DepthToSpace";
  if (shape.size() != 4 || b < 1 || shape[to_space ? 1 : 2] % b != 0) {
    return node.Error(StatusCode::kBadData, "has no blocks of %lld", static_cast<long long>(b));
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
    ENGINE_ASSIGN_OR_RETURN(x, lowering.Contiguous(node, x));
    if (!x.layout.Reshape(split)) return Samples(node);
  }
  x.layout.Permute(order);
  if (!x.layout.Reshape(result)) return Samples(node);
  lowering.Set(node.output(0), std::move(x));
  return {};
}

// ---- Along one dimension

// Some tensors in one order of memory in which dimension `axis` is one axis, or none.
struct Along {
  std::vector<ModelValue> inputs;
  Layout layout;  // of the first of them
  int axis = -1;  // of the engine's tensors
};

// Dimension `dim` becomes one axis: its parts move together where they are not.
Result<Value> Joined(Lowering& lowering, const Node& node, Value x, int64_t dim) {
  std::vector<int>& axes = x.layout.dims[dim];
  const bool has_samples =
      std::ranges::any_of(axes, [&](int axis) { return x.layout.IsSamples(axis); });
  if (has_samples) return Samples(node);
  if (axes.size() < 2) return x;
  std::vector<int> order;
  for (const int axis : x.layout.MemoryOrder()) {
    const bool part = std::ranges::find(axes, axis) != axes.end();
    if (axis == axes[0]) order.insert(order.end(), axes.begin(), axes.end());
    if (!part) order.push_back(axis);
  }
  Groups groups;
  for (const int axis : order) {
    const bool part = std::ranges::find(axes, axis) != axes.end();
    if (!part || axis == axes[0]) groups.emplace_back();
    groups.back().push_back(axis);
  }
  ENGINE_ASSIGN_OR_RETURN(const ModelValue engine, lowering.Arrange(node, x, groups));
  Layout joined = x.layout.Reordered(order);
  const int first = joined.dims[dim][0];
  for (size_t i = joined.dims[dim].size(); i > 1; --i) {
    joined.axes[first] *= joined.axes[first + 1];
    joined.axes.erase(joined.axes.begin() + first + 1);
    for (std::vector<int>& other : joined.dims) {
      for (int& axis : other) axis -= axis > first ? 1 : 0;
    }
  }
  joined.dims[dim] = {first};
  return Value{.engine = engine, .layout = std::move(joined)};
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
  Groups before, behind;
  for (const int other : joined.layout.MemoryOrder()) {
    const bool samples = joined.layout.batched && other == 0;
    Groups& side = other < axis ? before : behind;
    const bool joins = other != axis && !side.empty() && joined.layout.axes.size() > 6 &&
                       !samples && side.back() != std::vector{axis} &&
                       !(joined.layout.batched && side.back()[0] == 0);
    if (!joins) side.emplace_back();
    side.back().push_back(other);
  }
  const auto place = static_cast<int64_t>(before.size());
  before.insert(before.end(), behind.begin(), behind.end());
  ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Arrange(node, joined, before));
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
  if (range.count < 1) return node.Error(StatusCode::kBadData, "leaves no elements");
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
  lowering.Set(node.output(0), std::move(x));
  return {};
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
    return node.Error(
        StatusCode::kUnsupported,
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
  lowering.Set(node.output(0), std::move(y));
  return {};
}

Status LowerGather(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Value chosen, lowering.Input(node, 1));
  if (chosen.constant == nullptr) return LowerEmbedding(lowering, node, x, chosen);
  const Dims shape = x.Shape();
  ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, node.Int("axis", 0), shape.size()));
  Dims indices = chosen.constant->Ints();
  if (indices.empty()) return node.Error(StatusCode::kBadData, "picks nothing");
  for (int64_t& index : indices) {
    if (index < 0) index += shape[axis];
    if (index >= 0 && index < shape[axis]) continue;
    return node.Error(StatusCode::kBadData, "picks an element that is not there");
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
  lowering.Set(node.output(0), std::move(x));
  return {};
}

// All with the order of memory of the first batched one.
Result<Along> AlongOne(Lowering& lowering, const Node& node, std::vector<Value> values,
                       int64_t dim) {
  Along along;
  std::vector<Layout> whole;
  std::vector<Layout*> layouts;
  for (Value& value : values) {
    ENGINE_ASSIGN_OR_RETURN(value, WithAxis(lowering, node, value, dim));
  }
  // The other dimensions are cut alike; the one along which tensors differ is out of that.
  for (Value& value : values) {
    Layout& layout = whole.emplace_back(value.layout);
    layout.dims.erase(layout.dims.begin() + dim);
  }
  for (Layout& layout : whole) layouts.push_back(&layout);
  std::vector<std::vector<Column>> dims;
  if (!Align(layouts, 0, &dims)) {
    return node.Error(StatusCode::kUnsupported, "its inputs have shapes that do not fit together");
  }
  const auto first = static_cast<size_t>(
      std::ranges::find_if(values, [](const Value& v) { return v.layout.batched; }) -
      values.begin());
  const size_t lead = first < values.size() ? first : 0;
  // The axis of `dim` in a layout without that dimension is the one that no dimension has.
  const auto own_axis = [&](const Layout& layout) {
    std::vector<bool> seen(layout.axes.size(), false);
    for (const auto& other : layout.dims) {
      for (const int axis : other) {
        if (axis >= 0) seen[axis] = true;
      }
    }
    return static_cast<int>(std::ranges::find(seen, false) - seen.begin());
  };
  std::vector<const Column*> order(whole[lead].axes.size(), nullptr);
  for (const auto& columns : dims) {
    for (const Column& column : columns) {
      if (column.axis[lead] < 0)
        return node.Error(StatusCode::kUnsupported, "joins different shapes");
      order[column.axis[lead]] = &column;
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    Groups groups;
    for (const Column* const column : order) {
      const int axis = column == nullptr ? own_axis(whole[i]) : column->axis[i];
      groups.push_back(axis < 0 ? std::vector<int>() : std::vector{axis});
    }
    values[i].layout = whole[i];
    ENGINE_ASSIGN_OR_RETURN(along.inputs.emplace_back(), lowering.Arrange(node, values[i], groups));
  }
  along.axis = own_axis(whole[lead]);
  along.layout = whole[lead];
  along.layout.dims.insert(along.layout.dims.begin() + dim, {along.axis});
  return along;
}

Status LowerConcat(Lowering& lowering, const Node& node) {
  std::vector<Value> values;
  int64_t extent = 0, axis = 0;
  for (size_t i = 0; i < node.input_count(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(const Value value, lowering.Input(node, i));
    values.push_back(value);
    ENGINE_ASSIGN_OR_RETURN(axis, AxisOf(node, node.Int("axis", 0), value.Shape().size()));
    extent += value.Shape()[axis];
  }
  if (values.size() == 1) {
    lowering.Set(node.output(0), values[0]);
    return {};
  }
  ENGINE_ASSIGN_OR_RETURN(Along along, AlongOne(lowering, node, values, axis));
  // An op has so many inputs at most: what it gives is the first of the next one.
  std::vector<ModelValue> left = along.inputs;
  while (left.size() > 1) {
    const size_t count = std::min(left.size(), size_t{kMaxOpInputs});
    const std::vector<ModelValue> now(left.begin(),
                                      left.begin() + static_cast<std::ptrdiff_t>(count));
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count) - 1);
    ENGINE_ASSIGN_OR_RETURN(
        left[0], lowering.Emit(node.name(), "concat", now, {kit::Int("axis", along.axis)}));
  }
  along.layout.axes[along.axis] = extent;
  lowering.Set(node.output(0), {.engine = left[0], .layout = along.layout});
  return {};
}

Status LowerPad(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  ENGINE_ASSIGN_OR_RETURN(const auto value, lowering.Constant(node, 2));
  const Dims pads = ListOf(node, "pads", given.get());
  const size_t rank = x.layout.dims.size();
  if (pads.size() != 2 * rank)
    return node.Error(StatusCode::kBadData, "has not two pads for each axis");
  std::vector<std::pair<size_t, SliceRange>> cuts;
  Value padded = x;
  for (size_t i = 0; i < rank; ++i) {
    if (pads[i] == 0 && pads[i + rank] == 0) continue;
    ENGINE_ASSIGN_OR_RETURN(padded, WithAxis(lowering, node, padded, static_cast<int64_t>(i)));
    // Negative pads cut.
    const int64_t extent = padded.Shape()[i], begin = std::max<int64_t>(-pads[i], 0);
    const int64_t end = extent - std::max<int64_t>(-pads[i + rank], 0);
    ENGINE_ASSIGN_OR_RETURN(
        padded, Sliced(lowering, node, padded, {static_cast<int64_t>(i), begin, 1, end - begin}));
    ENGINE_ASSIGN_OR_RETURN(padded, WithAxis(lowering, node, padded, static_cast<int64_t>(i)));
  }
  Layout& layout = padded.layout;
  Dims before(layout.axes.size(), 0), after = before;
  for (size_t i = 0; i < rank; ++i) {
    if (pads[i] <= 0 && pads[i + rank] <= 0) continue;
    const int axis = layout.dims[i][0];
    before[axis] = std::max<int64_t>(pads[i], 0);
    after[axis] = std::max<int64_t>(pads[i + rank], 0);
  }
  const bool none = std::ranges::all_of(before, [](int64_t pad) { return pad == 0; }) &&
                    std::ranges::all_of(after, [](int64_t pad) { return pad == 0; });
  if (!none) {
    ENGINE_ASSIGN_OR_RETURN(
        const ModelValue input,
        lowering.Arrange(node, padded, OneEach(layout, layout.MemoryOrder(), layout.axes.size())));
    for (size_t i = 0; i < before.size(); ++i) layout.axes[i] += before[i] + after[i];
    if (layout.batched) {
      before.erase(before.begin());
      after.erase(after.begin());
    }
    ENGINE_ASSIGN_OR_RETURN(
        padded.engine,
        lowering.Emit(
            node.name(), "pad", {input},
            {IntsAttribute("before", before), IntsAttribute("after", after),
             kit::Float("value", value != nullptr && value->count() == 1 ? value->values[0] : 0),
             kit::Word("mode", node.Text("mode", "constant"))}));
    padded.constant = nullptr;
    padded.parameter.clear();
  }
  lowering.Set(node.output(0), std::move(padded));
  return {};
}

// Samples that share a parameter need no copy of it; other dimensions are copied.
Status LowerExpand(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, 1));
  Dims before = x.Shape();
  ENGINE_ASSIGN_OR_RETURN(const Dims shape, BroadcastShape(node, before, given->Ints()));
  x.layout.dims.insert(x.layout.dims.begin(), shape.size() - before.size(), {});
  before.insert(before.begin(), shape.size() - before.size(), 1);
  if (before[0] == 1 && shape[0] == lowering.samples() && !x.layout.batched &&
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
  lowering.Set(node.output(0), std::move(x));
  return {};
}

constexpr HandlerEntry kHandlers[] = {
    {"Concat", LowerConcat},
    {"DepthToSpace", LowerDepthToSpace},
    {"Expand", LowerExpand},
    {"Flatten", LowerReshape},
    {"Gather", LowerGather},
    {"Pad", LowerPad},
    {"Reshape", LowerReshape},
    {"Slice", LowerSlice},
    {"SpaceToDepth", LowerDepthToSpace},
    {"Split", LowerSplit},
    {"Squeeze", LowerReshape},
    {"Transpose", LowerTranspose},
    {"Unsqueeze", LowerReshape},
};

}  // namespace

std::span<const HandlerEntry> MoveHandlers() {
  return kHandlers;
}

}  // namespace engine::onnx
