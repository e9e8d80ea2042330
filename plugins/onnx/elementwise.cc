// Functions of elements: y lies where x lies.
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

Status Apply(Lowering& lowering, const Node& node, const Value& x, std::string_view op,
             const Attributes& attributes = {}) {
  ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Engine(x));
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made,
                          lowering.Emit(node.name(), op, {input}, attributes));
  lowering.Set(node.output(0), {.engine = made, .layout = x.layout});
  return {};
}

Status Scale(Lowering& lowering, const Node& node, const Value& x, double factor, double offset) {
  return Apply(lowering, node, x, "scale",
               {kit::Float("factor", factor), kit::Float("offset", offset)});
}

// Types whose op has the same meaning and no attributes.
Status LowerFunction(Lowering& lowering, const Node& node) {
  static const std::map<std::string, const char*> kOps = {{"Abs", "abs"},
                                                          {"Cos", "cos"},
                                                          {"Erf", "erf"},
                                                          {"Exp", "exp"},
                                                          {"HardSwish", "hard_swish"},
                                                          {"Log", "log"},
                                                          {"Mish", "mish"},
                                                          {"Reciprocal", "reciprocal"},
                                                          {"Relu", "relu"},
                                                          {"Sin", "sin"},
                                                          {"Sigmoid", "sigmoid"},
                                                          {"Softplus", "softplus"},
                                                          {"Sqrt", "sqrt"},
                                                          {"Tanh", "tanh"}};
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  return Apply(lowering, node, x, kOps.at(node.type()));
}

Status LowerNeg(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  return Scale(lowering, node, x, -1, 0);
}

Status LowerSlope(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  if (node.type() == "Elu") {
    return Apply(lowering, node, x, "elu", {kit::Float("alpha", node.Float("alpha", 1))});
  }
  return Apply(lowering, node, x, "leaky_relu", {kit::Float("slope", node.Float("alpha", 0.01))});
}

Status LowerHardSigmoid(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  const double alpha = node.Float("alpha", 0.2), beta = node.Float("beta", 0.5);
  if (IsNear(alpha, 1.0 / 6) && beta == 0.5) return Apply(lowering, node, x, "hard_sigmoid");
  ENGINE_RETURN_IF_ERROR(Scale(lowering, node, x, alpha, beta));
  ENGINE_ASSIGN_OR_RETURN(x, lowering.Get(node.output(0)));
  return Apply(lowering, node, x, "clip", {kit::Float("min", 0), kit::Float("max", 1)});
}

Status LowerClip(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  Attributes attributes;
  const char* const names[] = {"min", "max"};
  for (size_t i = 0; i < 2; ++i) {
    ENGINE_ASSIGN_OR_RETURN(const auto bound, lowering.Constant(node, i + 1));
    if (bound == nullptr) continue;
    if (bound->count() != 1)
      return node.Error(StatusCode::kBadData, "has a bound that is no number");
    if (std::abs(bound->values[0]) < 3e38) {
      attributes.push_back(kit::Float(names[i], bound->values[0]));
    }
  }
  return Apply(lowering, node, x, "clip", attributes);
}

// x (N, C, ...) with a slope for each channel (C, 1, ...), or one for all.
Status LowerPrelu(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  ENGINE_ASSIGN_OR_RETURN(const Value slope, lowering.Input(node, 1));
  const std::vector<int> channels = x.layout.rank() > 1 ? x.layout.dims[1] : std::vector<int>();
  ENGINE_ASSIGN_OR_RETURN(const Last last, MakeLast(lowering, node, x, channels));
  ENGINE_ASSIGN_OR_RETURN(
      const ModelValue made,
      lowering.EmitLayer(node, "prelu", last.input, slope, {slope.layout.LogicalOrder()},
                         slope.Shape().size() == 1, nullptr, {}));
  lowering.Set(node.output(0), {.engine = made, .layout = last.layout});
  return {};
}

Status LowerSame(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  lowering.Set(node.output(0), std::move(x));
  return {};
}

// Between types of numbers with a fraction: activations have one type here.
Status LowerCast(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(Value x, lowering.Input(node, 0));
  proto::TensorProto to;
  to.set_data_type(static_cast<int32_t>(node.Int("to", 0)));
  const bool from_int = x.engine >= 0 && lowering.Spec(x.engine).dtype == DType::kInt32;
  if (from_int == IsFloat(to)) {
    return node.Error(StatusCode::kUnsupported, "casts what depends on samples between %s",
                      "integers and numbers with a fraction");
  }
  lowering.Set(node.output(0), std::move(x));
  return {};
}

// Opset 12 on: the rate and whether it trains are inputs; an export for inference has neither.
Status LowerDropout(Lowering& lowering, const Node& node) {
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 0));
  double rate = node.Float("ratio", 0.5), training = node.opset() < 12 ? 1 : 0;
  if (node.HasInput(1)) lowering.IsScalar(node.input(1), &rate);
  if (node.HasInput(2)) lowering.IsScalar(node.input(2), &training);
  if (training == 0 || rate == 0) return LowerSame(lowering, node);
  return Apply(lowering, node, x, "dropout", {kit::Float("rate", rate)});
}

// ---- Of two

constexpr struct {
  const char* type;
  const char* op;
} kBinaryOps[] = {{"Add", "add"},   {"Sub", "subtract"}, {"Mul", "multiply"}, {"Div", "divide"},
                  {"Pow", "power"}, {"Max", "maximum"},  {"Min", "minimum"},  {"Sum", "add"}};

// A number and something else, for which there are ops that read one tensor.
Result<bool> LowerWithNumber(Lowering& lowering, const Node& node) {
  if (node.input_count() != 2) return false;
  for (size_t i = 0; i < 2; ++i) {
    double number = 0;
    if (!lowering.IsScalar(node.input(i), &number)) continue;
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(node, 1 - i));
    ENGINE_ASSIGN_OR_RETURN(const Value c, lowering.Input(node, i));
    if (c.Shape().size() > x.Shape().size()) return false;
    const std::string& type = node.type();
    const bool first = i == 0;
    if (type == "Add") ENGINE_RETURN_IF_ERROR(Scale(lowering, node, x, 1, number));
    if (type == "Mul") ENGINE_RETURN_IF_ERROR(Scale(lowering, node, x, number, 0));
    if (type == "Sub") {
      ENGINE_RETURN_IF_ERROR(Scale(lowering, node, x, first ? -1 : 1, first ? number : -number));
    }
    if (type == "Div" && !first) ENGINE_RETURN_IF_ERROR(Scale(lowering, node, x, 1 / number, 0));
    if (type == "Div" && first && number == 1) {
      ENGINE_RETURN_IF_ERROR(Apply(lowering, node, x, "reciprocal"));
    } else if (type == "Div" && first) {
      return false;
    }
    if (type == "Pow" && (first || std::abs(number) > 64)) return false;
    if (type == "Pow") {
      ENGINE_RETURN_IF_ERROR(Apply(lowering, node, x, "pow", {kit::Float("exponent", number)}));
    }
    if (type == "Max") {
      ENGINE_RETURN_IF_ERROR(Apply(lowering, node, x, "clip", {kit::Float("min", number)}));
    }
    if (type == "Min") {
      ENGINE_RETURN_IF_ERROR(Apply(lowering, node, x, "clip", {kit::Float("max", number)}));
    }
    return true;
  }
  return false;
}

Status Combine(Lowering& lowering, const Node& node, std::string_view op,
               const std::vector<Value>& values) {
  Layout layout;
  ENGINE_ASSIGN_OR_RETURN(const auto inputs, lowering.Broadcast(node, values, &layout));
  ENGINE_ASSIGN_OR_RETURN(const ModelValue made, lowering.Emit(node.name(), op, inputs));
  lowering.Set(node.output(0), {.engine = made, .layout = layout});
  return {};
}

Status LowerBinary(Lowering& lowering, const Node& node) {
  for (const auto pattern :
       {LowerNormPattern, LowerActivationPattern, LowerBiasPattern, LowerWithNumber}) {
    ENGINE_ASSIGN_OR_RETURN(const bool found, pattern(lowering, node));
    if (found) return {};
  }
  const char* op = nullptr;
  for (const auto& known : kBinaryOps) {
    if (node.type() == known.type) op = known.op;
  }
  ENGINE_ASSIGN_OR_RETURN(Value sum, lowering.Input(node, 0));
  lowering.Set(node.output(0), sum);
  for (size_t i = 1; i < node.input_count(); ++i) {
    ENGINE_ASSIGN_OR_RETURN(const Value next, lowering.Input(node, i));
    ENGINE_RETURN_IF_ERROR(Combine(lowering, node, op, {sum, next}));
    ENGINE_ASSIGN_OR_RETURN(sum, lowering.Get(node.output(0)));
  }
  return {};
}

Status LowerWhere(Lowering& lowering, const Node& node) {
  std::vector<Value> values(3);
  for (size_t i = 0; i < 3; ++i) {
    ENGINE_ASSIGN_OR_RETURN(values[i], lowering.Input(node, i));
  }
  return Combine(lowering, node, "where", values);
}

constexpr HandlerEntry kHandlers[] = {
    {"Abs", LowerFunction},
    {"Add", LowerBinary},
    {"Cast", LowerCast},
    {"Clip", LowerClip},
    {"Cos", LowerFunction},
    {"Div", LowerBinary},
    {"Dropout", LowerDropout},
    {"Elu", LowerSlope},
    {"Erf", LowerFunction},
    {"Exp", LowerFunction},
    {"HardSigmoid", LowerHardSigmoid},
    {"HardSwish", LowerFunction},
    {"Identity", LowerSame},
    {"LeakyRelu", LowerSlope},
    {"Log", LowerFunction},
    {"Max", LowerBinary},
    {"Min", LowerBinary},
    {"Mish", LowerFunction},
    {"Mul", LowerBinary},
    {"Neg", LowerNeg},
    {"PRelu", LowerPrelu},
    {"Pow", LowerBinary},
    {"Reciprocal", LowerFunction},
    {"Relu", LowerFunction},
    {"Sigmoid", LowerFunction},
    {"Sin", LowerFunction},
    {"Softplus", LowerFunction},
    {"Sqrt", LowerFunction},
    {"Sub", LowerBinary},
    {"Sum", LowerBinary},
    {"Tanh", LowerFunction},
    {"Where", LowerWhere},
};

}  // namespace

std::span<const HandlerEntry> ElementwiseHandlers() {
  return kHandlers;
}

}  // namespace engine::onnx
