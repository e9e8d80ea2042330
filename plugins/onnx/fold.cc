#include "fold.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "shape_rules.h"

namespace engine::onnx {
namespace {

using Inputs = std::span<const Tensor* const>;
using Type = Tensor::Type;

Status Misfit(const Node& node) {
  return node.Damaged("its constant inputs do not fit together");
}

// The largest constant that is computed: beyond that a file is more likely wrong than large.
constexpr int64_t kMostElements = int64_t{1} << 28;

Result<Tensor> MakeTensor(const Node& node, Type type, Dims dims) {
  const int64_t count = CheckedCount(dims);
  if (count < 0 || count > kMostElements) {
    return node.Damaged("gives a constant of an impossible shape");
  }
  return Tensor{type, std::move(dims), std::vector<double>(static_cast<size_t>(count))};
}

const Tensor* InputOr(Inputs inputs, size_t i) {
  return i < inputs.size() ? inputs[i] : nullptr;
}

// Element-wise functions of what broadcasts; integers stay integers.
template <typename Function>
Result<Tensor> Elementwise(const Node& node, Inputs inputs, Type type, Function function) {
  Dims shape;
  for (const Tensor* const input : inputs) {
    if (input == nullptr) return Misfit(node);
    ENGINE_ASSIGN_OR_RETURN(shape, BroadcastShape(node, shape, input->dims));
  }
  ENGINE_ASSIGN_OR_RETURN(Tensor y, MakeTensor(node, type, shape));
  std::vector<Positions> positions;
  for (const Tensor* const input : inputs) positions.push_back(Positions::Of(*input, shape));
  double values[3] = {};
  if (inputs.size() > std::size(values)) return Misfit(node);
  for (double& element : y.values) {
    for (size_t i = 0; i < inputs.size(); ++i) values[i] = inputs[i]->values[positions[i].Next()];
    element = function(values);
    if (type == Type::kFloat) element = static_cast<float>(element);
  }
  return y;
}

using Unary = double (*)(double);
using Binary = double (*)(double, double);

double Modulo(double a, double b) {
  return a - b * std::floor(a / b);
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

const std::map<std::string, Unary>& Unaries() {
  static const std::map<std::string, Unary> kTable = {
      {"Abs", std::abs},
      {"Ceil", std::ceil},
      {"Cos", std::cos},
      {"Erf", std::erf},
      {"Exp", std::exp},
      {"Floor", std::floor},
      {"Log", std::log},
      {"Sin", std::sin},
      {"Round", std::nearbyint},
      {"Sqrt", std::sqrt},
      {"Tanh", std::tanh},
      {"Sigmoid", Sigmoid},
      {"Neg", [](double x) { return -x; }},
      {"Relu", [](double x) { return std::max(x, 0.0); }},
      {"Reciprocal", [](double x) { return 1 / x; }},
      {"Sign", [](double x) { return static_cast<double>((x > 0) - (x < 0)); }},
      {"Not", [](double x) { return x == 0 ? 1.0 : 0.0; }},
      {"IsNaN", [](double x) { return std::isnan(x) ? 1.0 : 0.0; }}};
  return kTable;
}

struct BinaryFunction {
  Binary function;
  bool is_comparison = false;
};

const std::map<std::string, BinaryFunction>& Binaries() {
  static const std::map<std::string, BinaryFunction> kTable = {
      {"Add", {[](double a, double b) { return a + b; }}},
      {"Sub", {[](double a, double b) { return a - b; }}},
      {"Mul", {[](double a, double b) { return a * b; }}},
      {"Div", {[](double a, double b) { return a / b; }}},
      {"Pow", {[](double a, double b) { return std::pow(a, b); }}},
      {"Mod", {Modulo}},
      {"Min", {[](double a, double b) { return std::min(a, b); }}},
      {"Max", {[](double a, double b) { return std::max(a, b); }}},
      {"Equal", {[](double a, double b) { return a == b ? 1.0 : 0.0; }, true}},
      {"Less", {[](double a, double b) { return a < b ? 1.0 : 0.0; }, true}},
      {"LessOrEqual", {[](double a, double b) { return a <= b ? 1.0 : 0.0; }, true}},
      {"Greater", {[](double a, double b) { return a > b ? 1.0 : 0.0; }, true}},
      {"GreaterOrEqual", {[](double a, double b) { return a >= b ? 1.0 : 0.0; }, true}},
      {"And", {[](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }, true}},
      {"Or", {[](double a, double b) { return a != 0 || b != 0 ? 1.0 : 0.0; }, true}},
      {"Xor", {[](double a, double b) { return (a != 0) != (b != 0) ? 1.0 : 0.0; }, true}},
  };
  return kTable;
}

Result<Tensor> FoldBinary(const Node& node, Inputs inputs, const BinaryFunction& known) {
  if (inputs.size() != 2 || inputs[0] == nullptr || inputs[1] == nullptr) return Misfit(node);
  const Type type = known.is_comparison ? Type::kBool : inputs[0]->type;
  const bool is_integer = type == Type::kInt;
  if (is_integer && node.type() == "Div") {
    const auto divide = [](const double* x) { return x[1] == 0 ? 0 : std::trunc(x[0] / x[1]); };
    return Elementwise(node, inputs, type, divide);
  }
  return Elementwise(node, inputs, type,
                     [&](const double* x) { return known.function(x[0], x[1]); });
}

// ---- What only moves elements: y[i] = x[source(i)]

Result<Tensor> Moved(const Node& node, const Tensor& x, const Dims& shape, Positions positions) {
  ENGINE_ASSIGN_OR_RETURN(Tensor y, MakeTensor(node, x.type, shape));
  for (double& element : y.values) element = x.values[positions.Next()];
  return y;
}

Result<Tensor> FoldTranspose(const Node& node, Inputs inputs) {
  const Tensor& x = *inputs[0];
  ENGINE_ASSIGN_OR_RETURN(const Dims order, TransposedOrder(node, x.dims.size()));
  Positions positions = Positions::Of(x, x.dims);
  Dims shape;
  Dims strides;
  for (const int64_t dim : order) {
    shape.push_back(x.dims[dim]);
    strides.push_back(positions.strides[dim]);
  }
  return Moved(node, x, shape, Positions{0, shape, strides});
}

Result<Tensor> Cut(const Node& node, const Tensor& x, const std::vector<SliceRange>& ranges) {
  Positions positions = Positions::Of(x, x.dims);
  for (const SliceRange& range : ranges) {
    positions.first += range.begin * positions.strides[range.axis];
    positions.strides[range.axis] *= range.step;
    positions.extents[range.axis] = range.count;
  }
  const Dims shape = positions.extents;
  return Moved(node, x, shape, std::move(positions));
}

Result<Tensor> FoldSlice(const Node& node, Inputs inputs) {
  ENGINE_ASSIGN_OR_RETURN(const auto ranges, SliceRanges(node, inputs, inputs[0]->dims));
  return Cut(node, *inputs[0], ranges);
}

Result<Tensor> FoldGather(const Node& node, Inputs inputs) {
  const Tensor &x = *inputs[0], &indices = *inputs[1];
  ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, node.Int("axis", 0), x.dims.size()));
  Dims shape(x.dims.begin(), x.dims.begin() + axis);
  shape.insert(shape.end(), indices.dims.begin(), indices.dims.end());
  shape.insert(shape.end(), x.dims.begin() + axis + 1, x.dims.end());
  ENGINE_ASSIGN_OR_RETURN(Tensor y, MakeTensor(node, x.type, shape));
  const int64_t inner = Count({x.dims.begin() + axis + 1, x.dims.end()});
  const int64_t extent = x.dims[axis], picked = indices.count();
  const Dims chosen = indices.Ints();
  for (size_t i = 0; i < y.values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    int64_t index = chosen[at / inner % picked];
    if (index < 0) index += extent;
    if (index < 0 || index >= extent) return Misfit(node);
    y.values[i] = x.values[(at / (inner * picked) * extent + index) * inner + at % inner];
  }
  return y;
}

Result<Tensor> FoldConcat(const Node& node, Inputs inputs) {
  if (inputs.empty()) return Misfit(node);
  ENGINE_ASSIGN_OR_RETURN(const int64_t axis,
                          AxisOf(node, node.Int("axis", 0), inputs[0]->dims.size()));
  Tensor y = {inputs[0]->type, inputs[0]->dims, {}};
  y.dims[axis] = 0;
  for (const Tensor* const x : inputs) {
    if (x->dims.size() != y.dims.size()) return Misfit(node);
    y.dims[axis] += x->dims[axis];
  }
  const int64_t outer = Count({y.dims.begin(), y.dims.begin() + axis});
  for (int64_t i = 0; i < outer; ++i) {
    for (const Tensor* const x : inputs) {
      const int64_t part = x->count() / std::max<int64_t>(outer, 1);
      y.values.insert(y.values.end(), x->values.begin() + i * part,
                      x->values.begin() + (i + 1) * part);
    }
  }
  if (y.count() != static_cast<int64_t>(y.values.size())) return Misfit(node);
  return y;
}

Result<Tensor> FoldExpand(const Node& node, Inputs inputs) {
  ENGINE_ASSIGN_OR_RETURN(const Dims shape,
                          BroadcastShape(node, inputs[0]->dims, inputs[1]->Ints()));
  return Moved(node, *inputs[0], shape, Positions::Of(*inputs[0], shape));
}

Result<Tensor> FoldTile(const Node& node, Inputs inputs) {
  const Tensor& x = *inputs[0];
  const Dims repeats = inputs[1]->Ints();
  if (repeats.size() != x.dims.size()) return Misfit(node);
  // Each dimension as (repeats, extent), of which the repeats have no stride.
  const Positions plain = Positions::Of(x, x.dims);
  Positions positions;
  Dims shape;
  for (size_t i = 0; i < repeats.size(); ++i) {
    positions.extents.insert(positions.extents.end(), {repeats[i], x.dims[i]});
    positions.strides.insert(positions.strides.end(), {0, plain.strides[i]});
    if (__builtin_mul_overflow(repeats[i], x.dims[i], &shape.emplace_back())) return Misfit(node);
  }
  return Moved(node, x, shape, std::move(positions));
}

Result<Tensor> FoldReshape(const Node& node, Inputs inputs) {
  Tensor y = *inputs[0];
  ENGINE_ASSIGN_OR_RETURN(y.dims, ReshapedShape(node, y.dims, InputOr(inputs, 1)));
  return y;
}

Result<std::vector<Tensor>> FoldSplit(const Node& node, Inputs inputs) {
  const Tensor& x = *inputs[0];
  ENGINE_ASSIGN_OR_RETURN(const int64_t axis, AxisOf(node, node.Int("axis", 0), x.dims.size()));
  ENGINE_ASSIGN_OR_RETURN(const Dims extents, SplitExtents(node, x.dims[axis], InputOr(inputs, 1)));
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t extent : extents) {
    ENGINE_ASSIGN_OR_RETURN(parts.emplace_back(), Cut(node, x, {{axis, begin, 1, extent}}));
    begin += extent;
  }
  return parts;
}

// ---- What makes values

Result<Tensor> FoldCast(const Node& node, Inputs inputs) {
  Tensor y = *inputs[0];
  y.type = TypeOf(node.Int("to", proto::TensorProto::FLOAT));
  for (double& value : y.values) {
    if (y.type == Type::kInt) value = std::trunc(value);
    if (y.type == Type::kBool) value = value != 0 ? 1 : 0;
  }
  return y;
}

Result<Tensor> FoldRange(const Node& node, Inputs inputs) {
  for (const Tensor* const input : inputs) {
    if (inputs.size() != 3 || input == nullptr || input->count() != 1) return Misfit(node);
  }
  const double begin = inputs[0]->values[0], end = inputs[1]->values[0];
  const double step = inputs[2]->values[0];
  const double count = std::max(0.0, std::ceil((end - begin) / step));
  if (!(count <= static_cast<double>(kMostElements))) return Misfit(node);
  ENGINE_ASSIGN_OR_RETURN(Tensor y,
                          MakeTensor(node, inputs[0]->type, {static_cast<int64_t>(count)}));
  for (size_t i = 0; i < y.values.size(); ++i) y.values[i] = begin + static_cast<double>(i) * step;
  return y;
}

Result<Tensor> FoldTrilu(const Node& node, Inputs inputs) {
  Tensor y = *inputs[0];
  if (y.dims.size() < 2) return Misfit(node);
  const int64_t k = InputOr(inputs, 1) != nullptr ? inputs[1]->Ints().at(0) : 0;
  const int64_t rows = y.dims[y.dims.size() - 2], columns = y.dims.back();
  const bool upper = node.Int("upper", 1) != 0;
  for (size_t i = 0; i < y.values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t distance = at % columns - at / columns % rows;
    if (upper ? distance < k : distance > k) y.values[i] = 0;
  }
  return y;
}

Result<Tensor> FoldReduce(const Node& node, Inputs inputs) {
  const Tensor& x = *inputs[0];
  ENGINE_ASSIGN_OR_RETURN(const std::vector<bool> reduced,
                          ReducedDims(node, InputOr(inputs, 1), x.dims.size()));
  Dims kept = x.dims, shape;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (reduced[i]) kept[i] = 1;
    if (!reduced[i] || node.Int("keepdims", 1) != 0) shape.push_back(kept[i]);
  }
  ENGINE_ASSIGN_OR_RETURN(Tensor y, MakeTensor(node, x.type, kept));
  const bool product = node.type() == "ReduceProd", most = node.type() == "ReduceMax";
  const bool least = node.type() == "ReduceMin";
  const double infinity = std::numeric_limits<double>::infinity();
  std::ranges::fill(y.values, product ? 1 : most ? -infinity : least ? infinity : 0);
  Positions targets = Positions::Of(y, x.dims);
  for (const double value : x.values) {
    double& into = y.values[targets.Next()];
    into = product ? into * value
           : most  ? std::max(into, value)
           : least ? std::min(into, value)
                   : into + value;
  }
  if (node.type() == "ReduceMean") {
    for (double& value : y.values) {
      value *= static_cast<double>(y.values.size()) / static_cast<double>(x.values.size());
    }
  }
  y.dims = shape;
  return y;
}

Result<Tensor> FoldMatMul(const Node& node, Inputs inputs) {
  const Tensor &a = *inputs[0], &b = *inputs[1];
  if (a.dims.empty() || b.dims.size() != 2 || a.dims.back() != b.dims[0]) return Misfit(node);
  Dims shape = a.dims;
  shape.back() = b.dims[1];
  ENGINE_ASSIGN_OR_RETURN(Tensor y, MakeTensor(node, a.type, shape));
  const int64_t k = b.dims[0], n = b.dims[1];
  for (size_t i = 0; i < y.values.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    for (int64_t j = 0; j < k; ++j) {
      y.values[i] += a.values[at / n * k + j] * b.values[j * n + at % n];
    }
  }
  return y;
}

// x with the updates at the places that the indices name (their last dimension is a place).
Result<Tensor> FoldScatterND(const Node& node, Inputs inputs) {
  if (inputs.size() != 3 || inputs[1]->dims.empty()) return Misfit(node);
  Tensor y = *inputs[0];
  const Tensor &indices = *inputs[1], &updates = *inputs[2];
  const int64_t width = indices.dims.back();
  if (width < 1 || width > static_cast<int64_t>(y.dims.size())) return Misfit(node);
  const Dims chosen = indices.Ints();
  const int64_t places = indices.count() / width;
  const int64_t inner = Count({y.dims.begin() + width, y.dims.end()});
  if (updates.count() != places * inner) return Misfit(node);
  for (int64_t i = 0; i < places; ++i) {
    int64_t at = 0;
    for (int64_t j = 0; j < width; ++j) {
      int64_t index = chosen[i * width + j];
      if (index < 0) index += y.dims[j];
      if (index < 0 || index >= y.dims[j]) return Misfit(node);
      at = at * y.dims[j] + index;
    }
    std::copy_n(updates.values.begin() + i * inner, inner, y.values.begin() + at * inner);
  }
  return y;
}

Result<Tensor> FoldConstantOfShape(const Node& node, Inputs inputs) {
  Tensor fill{Type::kFloat, {}, {0}};
  if (const auto* const value = node.Find("value"); value != nullptr && value->has_t()) {
    ENGINE_ASSIGN_OR_RETURN(fill, ReadTensor(value->t(), node.name()));
  }
  if (fill.count() != 1) return Misfit(node);
  ENGINE_ASSIGN_OR_RETURN(Tensor y, MakeTensor(node, fill.type, inputs[0]->Ints()));
  std::ranges::fill(y.values, fill.values[0]);
  return y;
}

Result<Tensor> FoldClip(const Node& node, Inputs inputs) {
  Tensor y = *inputs[0];
  const Tensor *const least = InputOr(inputs, 1), *const most = InputOr(inputs, 2);
  for (const Tensor* const bound : {least, most}) {
    if (bound != nullptr && bound->count() != 1) return Misfit(node);
  }
  for (double& value : y.values) {
    if (least != nullptr) value = std::max(value, least->values[0]);
    if (most != nullptr) value = std::min(value, most->values[0]);
  }
  return y;
}

Result<Tensor> FoldWhere(const Node& node, Inputs inputs) {
  if (inputs.size() != 3) return Misfit(node);
  const auto choose = [](const double* x) { return x[0] != 0 ? x[1] : x[2]; };
  return Elementwise(node, inputs, inputs[1]->type, choose);
}

Result<Tensor> Same(const Node& /*node*/, Inputs inputs) {
  return *inputs[0];
}

using Function = Result<Tensor> (*)(const Node&, Inputs);

const std::map<std::string, Function>& Functions() {
  static const std::map<std::string, Function> kTable = {
      {"Cast", FoldCast},         {"Clip", FoldClip},
      {"Concat", FoldConcat},     {"ConstantOfShape", FoldConstantOfShape},
      {"Dropout", Same},          {"Expand", FoldExpand},
      {"Flatten", FoldReshape},   {"Gather", FoldGather},
      {"Identity", Same},         {"MatMul", FoldMatMul},
      {"Range", FoldRange},       {"ReduceMax", FoldReduce},
      {"ReduceMean", FoldReduce}, {"ReduceMin", FoldReduce},
      {"ReduceProd", FoldReduce}, {"ReduceSum", FoldReduce},
      {"Reshape", FoldReshape},   {"ScatterND", FoldScatterND},
      {"Slice", FoldSlice},       {"Squeeze", FoldReshape},
      {"Tile", FoldTile},         {"Transpose", FoldTranspose},
      {"Trilu", FoldTrilu},       {"Unsqueeze", FoldReshape},
      {"Where", FoldWhere},
  };
  return kTable;
}

}  // namespace

bool CanFold(const std::string& type) {
  return type == "Split" || Functions().contains(type) || Unaries().contains(type) ||
         Binaries().contains(type);
}

Result<std::vector<Tensor>> Fold(const Node& node, Inputs inputs) {
  if (inputs.empty() || inputs[0] == nullptr) return Misfit(node);
  // These read each of their inputs.
  static const std::map<std::string, size_t> kCounts = {
      {"Concat", 1}, {"Expand", 2}, {"Gather", 2},   {"MatMul", 2},
      {"Tile", 2},   {"Where", 3},  {"ScatterND", 3}};
  const auto count = kCounts.find(node.type());
  if (count != kCounts.end() &&
      (inputs.size() < count->second || std::ranges::find(inputs, nullptr) != inputs.end())) {
    return Misfit(node);
  }
  if (node.type() == "Split") return FoldSplit(node, inputs);
  Result<Tensor> folded = [&]() -> Result<Tensor> {
    if (const auto known = Unaries().find(node.type()); known != Unaries().end()) {
      return Elementwise(node, inputs.first(1), inputs[0]->type,
                         [&](const double* x) { return known->second(x[0]); });
    }
    if (const auto known = Binaries().find(node.type()); known != Binaries().end()) {
      return FoldBinary(node, inputs, known->second);
    }
    return Functions().at(node.type())(node, inputs);
  }();
  if (!folded.ok()) return folded.status();
  return std::vector<Tensor>{std::move(*folded)};
}

}  // namespace engine::onnx
