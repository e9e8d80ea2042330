// Lowering: where elements lie, and how they get where an op wants them.
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lowering.h"

namespace engine::onnx {
namespace {

int64_t ExtentOf(const Layout& layout, const std::vector<int>& axes) {
  int64_t extent = 1;
  for (const int axis : axes) extent *= layout.axes[axis];
  return extent;
}

// What a transposition moves as one: axes that follow one another before and after. Samples are apart.
Groups Runs(const Layout& layout, std::span<const int> order) {
  Groups runs;
  for (const int axis : order) {
    const bool follows = !runs.empty() && runs.back().back() == axis - 1;
    const bool behind_samples = layout.batched && axis == 1;
    if (!follows || behind_samples) runs.emplace_back();
    runs.back().push_back(axis);
  }
  return runs;
}

}  // namespace

Groups OneEach(const Layout& layout, std::span<const int> order, size_t kept, size_t most) {
  Groups groups;
  for (const int axis : order) groups.push_back({axis});
  for (size_t i = layout.batched ? 1 : 0; groups.size() > most && i + 1 + kept < groups.size();) {
    groups[i].insert(groups[i].end(), groups[i + 1].begin(), groups[i + 1].end());
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  return groups;
}

Result<ModelValue> Lowering::Reshape(const Node& node, ModelValue value, const Shape& shape) {
  const TensorSpec spec = Spec(value);
  if (spec.shape == shape) return value;
  const std::pair key(value, Dims(shape.dims, shape.dims + shape.ndim));
  if (const auto found = reshaped_.find(key); found != reshaped_.end()) return found->second;
  const Dims behind(shape.dims + (spec.batched != 0 ? 1 : 0), shape.dims + shape.ndim);
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made, Emit(node.name() + ".reshape", "reshape", {value},
                                                      {IntsAttribute("shape", behind)}));
  return reshaped_[key] = made;
}

// First two runs that follow one another are brought together, which moves four blocks at most: then
// there is one run less.
Result<ModelValue> Lowering::TransposeTwice(const Node& node, const Value& value,
                                            std::span<const int> order, const Groups& runs) {
  const size_t first = value.layout.batched ? 1 : 0;
  const std::vector<int>&run = runs[first], &next = runs[first + 1];
  std::vector<int> closer;
  for (const int axis : value.layout.MemoryOrder()) {
    if (std::ranges::find(next, axis) == next.end()) closer.push_back(axis);
    if (axis == run.back()) closer.insert(closer.end(), next.begin(), next.end());
  }
  std::vector<int> rest;
  for (const int axis : order) {
    rest.push_back(static_cast<int>(std::ranges::find(closer, axis) - closer.begin()));
  }
  Value moved{.layout = value.layout.Reordered(closer)};
  ENGINE_ASSIGN_OR_RETURN(moved.engine, Transpose(node, value, closer));
  return Transpose(node, moved, rest);
}

// By the ops of image models where it is what those do: they take a batch in any type.
Result<ModelValue> Lowering::Transpose(const Node& node, const Value& value,
                                       std::span<const int> order) {
  ENGINE_ASSIGN_OR_RETURN(ModelValue engine, Engine(value));
  const std::pair key(engine, std::vector<int>(order.begin(), order.end()));
  if (const auto found = transposed_.find(key); found != transposed_.end()) return found->second;
  const Layout& layout = value.layout;
  const TensorSpec spec = Spec(engine);
  const std::string name = node.name() + ".transpose";
  const bool is_plane = layout.batched && layout.axes.size() == 4 && spec.shape.ndim == 4;
  if (is_plane && key.second == std::vector{0, 2, 3, 1}) {
    ENGINE_ASSIGN_OR_RETURN(engine, Emit(name, "to_channels_last", {engine}));
  } else if (is_plane && key.second == std::vector{0, 3, 1, 2}) {
    ENGINE_ASSIGN_OR_RETURN(engine, Emit(name, "to_channels_first", {engine}));
  } else {
    const Groups runs = Runs(layout, order);
    Groups before = runs;
    std::ranges::sort(before);
    if (runs.size() > size_t{kMaxDims}) return TransposeTwice(node, value, order, runs);
    Shape shape;
    for (const std::vector<int>& run : before) shape.dims[shape.ndim++] = ExtentOf(layout, run);
    if (layout.batched) shape[0] = spec.shape[0];
    ENGINE_ASSIGN_OR_RETURN(engine, Reshape(node, engine, shape));
    Dims places;
    for (const std::vector<int>& run : runs) {
      if (layout.batched && run[0] == 0) continue;
      places.push_back(std::ranges::find(before, run) - before.begin());
    }
    ENGINE_ASSIGN_OR_RETURN(engine,
                            Emit(name, "transpose", {engine}, {IntsAttribute("order", places)}));
  }
  return transposed_[key] = engine;
}

Result<ModelValue> Lowering::Arrange(const Node& node, const Value& value, const Groups& groups) {
  const Layout& layout = value.layout;
  std::vector<int> order;
  for (const std::vector<int>& group : groups)
    order.insert(order.end(), group.begin(), group.end());
  if (layout.batched && (groups.empty() || groups[0] != std::vector{0})) {
    return node.Unsupported(
        "needs its input in an order in which the elements of a sample are apart");
  }
  ENGINE_ASSIGN_OR_RETURN(ModelValue engine, Engine(value));
  if (order != layout.MemoryOrder()) {
    ENGINE_ASSIGN_OR_RETURN(engine, Transpose(node, value, order));
  }
  if (groups.size() > size_t{kMaxDims}) {
    return node.Unsupported("needs a tensor of %zu dimensions", groups.size());
  }
  Shape shape;
  for (const std::vector<int>& group : groups) shape.dims[shape.ndim++] = ExtentOf(layout, group);
  if (layout.batched) shape[0] = Spec(engine).shape[0];
  return Reshape(node, engine, shape);
}

Result<Value> Lowering::OneAxisEach(const Node& node, const Value& value, bool in_order) {
  const Layout& from = value.layout;
  Value made{.layout = {.batched = from.batched, .samples = samples_}};
  Layout& to = made.layout;
  to.dims.resize(from.dims.size());
  std::vector<std::pair<std::vector<int>, size_t>> parts;  // of a dimension
  for (size_t i = 0; i < from.dims.size(); ++i) {
    std::vector<int> part;
    for (const int axis : from.dims[i]) {
      if (!from.IsSamples(axis)) {
        part.push_back(axis);
      } else if (part.empty()) {
        to.dims[i].push_back(axis);
      } else {
        return node.Unsupported("needs the elements of a sample apart from those of others");
      }
    }
    if (!part.empty() || (in_order && to.dims[i].empty())) parts.emplace_back(part, i);
  }
  if (!in_order) std::ranges::sort(parts);
  Groups groups;
  if (from.batched) groups.push_back({0});
  if (from.batched) to.axes.push_back(from.axes[0]);
  for (const auto& [part, dim] : parts) {
    groups.push_back(part);
    if (part.empty()) continue;
    to.dims[dim].push_back(static_cast<int>(to.axes.size()));
    to.axes.push_back(ExtentOf(from, part));
  }
  ENGINE_ASSIGN_OR_RETURN(made.engine, Arrange(node, value, groups));
  return made;
}

Result<std::vector<std::vector<Column>>> Lowering::AlignAll(const Node& node,
                                                            std::span<Value* const> values,
                                                            int skipped) {
  std::vector<Layout*> layouts;
  for (Value* const value : values) layouts.push_back(&value->layout);
  std::vector<std::vector<Column>> dims;
  if (Align(layouts, skipped, &dims)) return dims;
  for (Value* const value : values) {
    ENGINE_ASSIGN_OR_RETURN(*value, OneAxisEach(node, *value, true));
  }
  if (Align(layouts, skipped, &dims)) return dims;
  return node.Unsupported("its inputs have shapes that do not fit together");
}

namespace {

// The columns with memory of all dimensions, in the order of memory of a tensor that has all of them,
// else in logical order; samples are first.
std::vector<const Column*> OrderColumns(const std::vector<std::vector<Column>>& dims) {
  std::vector<const Column*> columns;
  for (const std::vector<Column>& dim : dims) {
    for (const Column& column : dim) {
      if (column.InMemory()) columns.push_back(&column);
    }
  }
  const size_t count = columns.empty() ? 0 : columns[0]->axis.size();
  for (size_t i = 0; i < count; ++i) {
    if (!std::ranges::all_of(columns, [&](const Column* column) { return column->axis[i] >= 0; })) {
      continue;
    }
    std::ranges::sort(columns, {}, [&](const Column* column) { return column->axis[i]; });
    break;
  }
  std::ranges::stable_sort(columns, std::greater(), &Column::samples);
  return columns;
}

// Dimensions of tensors of the engine: neighbours that the same tensors have are one where there are
// too many.
std::vector<std::vector<const Column*>> JoinColumns(const std::vector<const Column*>& columns) {
  std::vector<std::vector<const Column*>> joined;
  for (const Column* const column : columns) {
    const bool joins = columns.size() > size_t{kMaxDims} && !joined.empty() &&
                       !joined.back()[0]->samples && column->IsLike(*joined.back()[0]);
    if (!joins) joined.emplace_back();
    joined.back().push_back(column);
  }
  return joined;
}

// Keeps one of the `samples` in dimension `at`, if all are equal.
void KeepOne(int64_t samples, int at, Tensor* tensor) {
  const int64_t inner = Count({tensor->dims.begin() + at + 1, tensor->dims.end()});
  const int64_t outer = Count({tensor->dims.begin(), tensor->dims.begin() + at});
  std::vector<double> once;
  for (int64_t i = 0; i < outer; ++i) {
    const auto first = tensor->values.begin() + i * samples * inner;
    for (int64_t j = 1; j < samples; ++j) {
      if (!std::equal(first, first + inner, first + j * inner)) return;
    }
    once.insert(once.end(), first, first + inner);
  }
  tensor->values = std::move(once);
  tensor->dims[at] = 1;
}

// A constant that was expanded to the batch says the same for each sample: it is needed once.
void DropCopies(int64_t samples, std::vector<Value>* values) {
  for (Value& value : *values) {
    if (value.constant == nullptr) continue;
    Tensor tensor = *value.constant;
    for (const Value& other : *values) {
      for (int from_end = 1; from_end <= other.layout.rank(); ++from_end) {
        const std::vector<int>& dim = other.layout.dims[other.layout.rank() - from_end];
        const int at = static_cast<int>(tensor.dims.size()) - from_end;
        if (dim.size() == 1 && other.layout.IsSamples(dim[0]) && at >= 0 && samples != 1 &&
            tensor.dims[at] == samples) {
          KeepOne(samples, at, &tensor);
        }
      }
    }
    value.layout = Layout::RowMajor(tensor.dims, false, samples);
    value.constant = std::make_shared<const Tensor>(std::move(tensor));
  }
}

}  // namespace

// A tensor has an extent of 1 where a column is not its own.
Result<std::vector<ModelValue>> Lowering::Broadcast(const Node& node, std::vector<Value> values,
                                                    Layout* result) {
  DropCopies(samples_, &values);
  std::vector<Value*> borrowed;
  for (Value& value : values) borrowed.push_back(&value);
  ENGINE_ASSIGN_OR_RETURN(const auto dims, AlignAll(node, borrowed, 0));
  const std::vector<const Column*> columns = OrderColumns(dims);
  *result = Layout{.batched = !columns.empty() && columns[0]->samples, .samples = samples_};
  for (const Column* const column : columns) result->axes.push_back(column->extent);
  for (const std::vector<Column>& dim : dims) {
    std::vector<int>& axes = result->dims.emplace_back();
    for (const Column& column : dim) {
      const auto place = std::ranges::find(columns, &column);
      axes.push_back(place == columns.end() ? kShared : static_cast<int>(place - columns.begin()));
    }
  }
  const auto joined = JoinColumns(columns);
  std::vector<ModelValue> inputs;
  for (size_t i = 0; i < values.size(); ++i) {
    Groups groups;
    for (const auto& group : joined) {
      std::vector<int>& axes = groups.emplace_back();
      for (const Column* const column : group) {
        if (column->axis[i] >= 0) axes.push_back(column->axis[i]);
      }
    }
    // Leading extents of 1 are no matter where there are no samples.
    while (!values[i].layout.batched && groups.size() > 1 && groups[0].empty()) {
      groups.erase(groups.begin());
    }
    ENGINE_ASSIGN_OR_RETURN(inputs.emplace_back(), Arrange(node, values[i], groups));
  }
  return inputs;
}

}  // namespace engine::onnx
