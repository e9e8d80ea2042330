// Functions of elements: y lies where x lies.
#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lowering.h"
#include "norms.h"
#include "patterns.h"

namespace engine::onnx {
namespace {

constexpr double kLargest = 3.4e38;  // that a float32 holds, nearly

Status Apply(Lowering& lowering, const Node& node, const Value& x, const std::vector<Step>& steps) {
  ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Engine(x));
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made, EmitAll(lowering, node, input, steps));
  return Give(lowering, node, made, x.layout);
}

// A type whose op has the same meaning and no attributes, or that is some ops one after the other.
std::vector<Step> StepsOf(const Node& node) {
  static const std::map<std::string_view, const char*> kOps = {
      {"Abs", "abs"},   {"Cos", "cos"},   {"Erf", "erf"},
      {"Exp", "exp"},   {"Log", "log"},   {"HardSwish", "hard_swish"},
      {"Mish", "mish"}, {"Relu", "relu"}, {"Reciprocal", "reciprocal"},
      {"Sin", "sin"},   {"Sqrt", "sqrt"}, {"Softplus", "softplus"},
      {"Tanh", "tanh"}, {"Identity", ""}, {"Sigmoid", "sigmoid"}};
  const std::string& type = node.type();
  const auto elu = [](double alpha) { return Step{"elu", {kit::Float("alpha", alpha)}}; };
  if (type == "Neg") return {Scaled(-1, 0)};
  if (type == "Not") return {Scaled(-1, 1)};  // of what is 0 or 1
  if (type == "Elu") return {elu(node.Float("alpha", 1))};
  if (type == "Selu") {
    return {elu(node.Float("alpha", 1.67326319)), Scaled(node.Float("gamma", 1.05070102), 0)};
  }
  if (type == "Celu") {  // alpha elu(x / alpha), which is x above 0
    const double alpha = node.Float("alpha", 1);
    return {Scaled(1 / alpha, 0), elu(1), Scaled(alpha, 0)};
  }
  if (type == "LeakyRelu") {
    return {{"leaky_relu", {kit::Float("slope", node.Float("alpha", 0.01))}}};
  }
  if (type == "HardSigmoid") {
    const double alpha = node.Float("alpha", 0.2), beta = node.Float("beta", 0.5);
    if (IsNear(alpha, 1.0 / 6) && beta == 0.5) return {{"hard_sigmoid"}};
    return {Scaled(alpha, beta), Clipped(0, 1)};
  }
  const std::string_view op = kOps.at(type);
  return op.empty() ? std::vector<Step>() : std::vector{Step{op}};
}

Status LowerFunction(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  return Apply(lowering, node, x, StepsOf(node));
}

Status LowerClip(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  double bounds[] = {-kLargest, kLargest};
  for (size_t i = 0; i < 2; ++i) {
    ENGINE_ASSIGN_OR_RETURN(const auto bound, lowering.Constant(node, i + 1));
    if (bound == nullptr) continue;
    if (bound->count() != 1) return node.Damaged("has a bound that is no number");
    bounds[i] = std::clamp(bound->values[0], -kLargest, kLargest);
  }
  return Apply(lowering, node, x, {Clipped(bounds[0], bounds[1])});
}

// x (N, C, ...) with a slope for each channel (C, 1, ...), or one for all.
Status LowerPrelu(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Value slope, lowering.Input(node, 1));
  const Dims shape = x.Shape();
  if (shape.empty()) return node.Damaged("has no dimension");
  Dims wanted(shape.size() > 1 ? shape.size() - 1 : 1, 1);
  if (slope.layout.axes.size() > 0) wanted[0] = shape.size() > 1 ? shape[1] : shape[0];
  Dims given = slope.Shape();
  given.insert(given.begin(), wanted.size() - std::min(wanted.size(), given.size()), 1);
  if (given != wanted || slope.parameter.empty()) {
    return node.Unsupported("has a slope that is no parameter for each channel, nor one for all");
  }
  const std::vector<int> channels = x.layout.rank() > 1 ? x.layout.dims[1] : std::vector<int>();
  ENGINE_ASSIGN_OR_RETURN(const Last last, MakeLast(lowering, node, x, channels));
  const bool natural = slope.layout.rank() == 1 && slope.layout.axes.size() == 1;
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made,
                          lowering.EmitLayer(node, "prelu", last.input, slope,
                                             {slope.layout.LogicalOrder()}, natural, nullptr, {}));
  return Give(lowering, node, made, last.layout);
}

// Between types of numbers with a fraction: activations have one type here.
Status LowerCast(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  const bool from_int = x.engine >= 0 && lowering.Spec(x.engine).dtype == DType::kInt32;
  if (from_int == IsFloat(node.Int("to", 0))) {
    return node.Unsupported("casts what depends on samples between %s",
                            "integers and numbers with a fraction");
  }
  return Give(lowering, node, std::move(x));
}

// Opset 12 on: the rate and whether it trains are inputs; an export for inference has neither.
Status LowerDropout(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  double rate = node.Float("ratio", 0.5), training = node.opset() < 12 ? 1 : 0;
  for (const auto& [i, number] : {std::pair{1, &rate}, {2, &training}}) {
    ENGINE_ASSIGN_OR_RETURN(const auto given, lowering.Constant(node, i));
    if (given != nullptr && given->count() == 1) *number = given->values[0];
  }
  if (training == 0 || rate == 0) return Apply(lowering, node, x, {});
  return Apply(lowering, node, x, {{"dropout", {kit::Float("rate", rate)}}});
}

// ---- Of two

// What a type does with a number and something else, by ops that read one tensor; none: there are no
// such ops.
std::vector<Step> StepsWith(const Node& node, double number, bool is_first) {
  const std::string& type = node.type();
  if (type == "Add") return {Scaled(1, number)};
  if (type == "Mul") return {Scaled(number, 0)};
  if (type == "Sub") return {is_first ? Scaled(-1, number) : Scaled(1, -number)};
  if (type == "Div" && !is_first) return {Scaled(1 / number, 0)};
  if (type == "Div" && number == 1) return {{"reciprocal"}};
  if (type == "Div") return {{"reciprocal"}, Scaled(number, 0)};
  if (type == "Max") return {Clipped(number, kLargest)};
  if (type == "Min") return {Clipped(-kLargest, number)};
  if (type != "Pow" || is_first || std::abs(number) > 64) return {};
  return {{"pow", {kit::Float("exponent", number)}}};
}

Result<bool> LowerWithNumber(Lowering& lowering, const Node& node) {
  for (size_t i = 0; i < 2 && node.input_count() == 2; ++i) {
    double number = 0;
    if (!lowering.IsScalar(node.input(i), &number)) continue;
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 1 - i));
    ENGINE_ASSIGN_OR_RETURN(const Value c, lowering.Input(node, i));
    const std::vector<Step> steps = StepsWith(node, number, i == 0);
    if (steps.empty() || c.Shape().size() > x.Shape().size()) return false;
    ENGINE_RETURN_IF_ERROR(Apply(lowering, node, x, steps));
    return true;
  }
  return false;
}

Status Combine(Lowering& lowering, const Node& node, std::string_view op,
               const std::vector<Value>& values) {
  Layout layout;
  ENGINE_ASSIGN_OR_RETURN(const auto inputs, lowering.Broadcast(node, values, &layout));
  return GiveOp(lowering, node, op, inputs, {}, layout);
}

Status LowerBinary(Lowering& lowering, const Node& node) {
  static const std::map<std::string_view, const char*> kOps = {
      {"Add", "add"},      {"Sub", "subtract"}, {"Mul", "multiply"}, {"Div", "divide"},
      {"Pow", "power"},    {"Max", "maximum"},  {"Min", "minimum"},  {"Sum", "add"},
      {"And", "multiply"}, {"Or", "maximum"}};
  for (const auto pattern : {LowerPattern, LowerWithNumber}) {
    ENGINE_ASSIGN_OR_RETURN(const bool found, pattern(lowering, node));
    if (found) return {};
  }
  ENGINE_ASSIGN_OR_RETURN(Value sum, lowering.Input(node, 0));
  lowering.Set(node.output(0), sum);
  for (size_t i = 1; i < node.input_count(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(const Value next, lowering.Input(node, i));
    ENGINE_RETURN_IF_ERROR(Combine(lowering, node, kOps.at(node.type()), {sum, next}));
    ENGINE_ASSIGN_OR_RETURN(sum, lowering.Get(node.output(0)));
  }
  return {};
}

// 1 or 0: the difference times the largest number, between these bounds. Nobody trains what decides.
Status LowerComparison(Lowering& lowering, const Node& node) {
  std::vector<Value> values(2);
  for (size_t i = 0; i < 2; ++i) {
    ENGINE_ASSIGN_OR_RETURN(values[i], lowering.Input(node, i));
    if (values[i].engine >= 0 && lowering.Spec(values[i].engine).dtype == DType::kInt32) {
      return node.Unsupported("compares integers of a sample");
    }
  }
  ENGINE_RETURN_IF_ERROR(Combine(lowering, node, "subtract", values));
  ENGINE_ASSIGN_OR_RETURN(const Value difference, lowering.Get(node.output(0)));
  const std::string& type = node.type();
  const bool least = type == "Less" || type == "GreaterOrEqual";
  std::vector<Step> steps = {Scaled(least ? -kLargest : kLargest, 0), Clipped(0, 1)};
  if (type == "Equal") steps.insert(steps.begin(), Step{"abs"});
  if (type.ends_with("Equal")) steps.push_back(Scaled(-1, 1));
  return Apply(lowering, node, difference, steps);
}

Status LowerWhere(Lowering& lowering, const Node& node) {
  std::vector<Value> values(3);
  for (size_t i = 0; i < 3; ++i) {
    ENGINE_ASSIGN_OR_RETURN(values[i], lowering.Input(node, i));
  }
  return Combine(lowering, node, "where", values);
}

constexpr HandlerEntry kElementwiseHandlers[] = {
    {"Abs,Celu,Cos,Elu,Erf,Exp,HardSigmoid,HardSwish,Identity,LeakyRelu,Log,Mish,Neg,Not,"
     "Reciprocal,Relu,Selu,Sigmoid,Sin,Softplus,Sqrt,Tanh",
     LowerFunction},
    {"Add,And,Div,Max,Min,Mul,Or,Pow,Sub,Sum", LowerBinary},
    {"Cast", LowerCast},
    {"Clip", LowerClip},
    {"Dropout", LowerDropout},
    {"Equal,Greater,GreaterOrEqual,Less,LessOrEqual", LowerComparison},
    {"PRelu", LowerPrelu},
    {"Where", LowerWhere},
};

}  // namespace

std::span<const HandlerEntry> ElementwiseHandlers() {
  return kElementwiseHandlers;
}

}  // namespace engine::onnx
