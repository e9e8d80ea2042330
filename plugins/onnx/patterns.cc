#include "patterns.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "norms.h"
#include "products.h"

namespace engine::onnx {
namespace {

bool IsScalarNear(Lowering& lowering, const std::string& name, double wanted) {
  double value = 0;
  return lowering.IsScalar(name, &value) && IsNear(value, wanted);
}

// Without nodes that change nothing.
std::string Through(Lowering& lowering, std::string value) {
  while (const Node* const node = lowering.graph().Producer(value)) {
    double rate = 1;
    const bool idle_dropout = node->type() == "Dropout" && node->HasInput(1) &&
                              lowering.IsScalar(node->input(1), &rate) && rate == 0;
    proto::TensorProto to;
    to.set_data_type(static_cast<int32_t>(node->Int("to", 0)));
    const bool cast = node->type() == "Cast" && IsFloat(to);
    if (!cast && !idle_dropout && node->type() != "Identity") break;
    value = node->input(0);
  }
  return value;
}

const Node* ProducerOf(Lowering& lowering, const std::string& value, std::string_view type) {
  const Node* const node = lowering.graph().Producer(Through(lowering, value));
  return node != nullptr && node->type() == type ? node : nullptr;
}

// mean(f(x)) over the last dimension, of a node that gives just that.
const Node* LastMean(Lowering& lowering, const std::string& value) {
  const Node* const node = ProducerOf(lowering, value, "ReduceMean");
  return node != nullptr && node->Ints("axes") == Dims{-1} && node->Int("keepdims", 1) != 0
             ? node
             : nullptr;
}

// The x of a x^2, or "".
std::string SquareRoot(Lowering& lowering, const std::string& value) {
  if (const Node* const pow = ProducerOf(lowering, value, "Pow")) {
    return IsScalarNear(lowering, pow->input(1), 2) ? Through(lowering, pow->input(0)) : "";
  }
  const Node* const mul = ProducerOf(lowering, value, "Mul");
  const bool square =
      mul != nullptr && Through(lowering, mul->input(0)) == Through(lowering, mul->input(1));
  return square ? Through(lowering, mul->input(0)) : "";
}

// sqrt(mean(x^2) + epsilon): the name of x, or "".
std::string RootMeanSquare(Lowering& lowering, const std::string& root, double* epsilon) {
  const Node* const sqrt = ProducerOf(lowering, root, "Sqrt");
  const Node* const add = sqrt != nullptr ? ProducerOf(lowering, sqrt->input(0), "Add") : nullptr;
  std::string mean;
  if (add == nullptr || !HasScalar(lowering, *add, epsilon, &mean)) return "";
  const Node* const reduced = LastMean(lowering, mean);
  return reduced != nullptr ? SquareRoot(lowering, reduced->input(0)) : "";
}

// x / sqrt(mean(x^2) + epsilon), as a division or a product with a reciprocal: the name of x, or "".
std::string Normalised(Lowering& lowering, const std::string& value, double* epsilon) {
  if (const Node* const div = ProducerOf(lowering, value, "Div")) {
    const std::string x = RootMeanSquare(lowering, div->input(1), epsilon);
    return !x.empty() && x == Through(lowering, div->input(0)) ? x : "";
  }
  const Node* const mul = ProducerOf(lowering, value, "Mul");
  for (size_t i = 0; mul != nullptr && i < 2; ++i) {
    const Node* inverse = ProducerOf(lowering, mul->input(i), "Reciprocal");
    size_t root = 0;
    if (inverse == nullptr) {
      inverse = ProducerOf(lowering, mul->input(i), "Div");
      if (inverse == nullptr || !IsScalarNear(lowering, inverse->input(0), 1)) continue;
      root = 1;
    }
    const std::string x = RootMeanSquare(lowering, inverse->input(root), epsilon);
    if (!x.empty() && x == Through(lowering, mul->input(1 - i))) return x;
  }
  return "";
}

// The x of x - mean(x), or "".
std::string Uncentred(Lowering& lowering, const std::string& value) {
  const Node* const sub = ProducerOf(lowering, value, "Sub");
  const Node* const mean = sub != nullptr ? LastMean(lowering, sub->input(1)) : nullptr;
  const bool same =
      mean != nullptr && Through(lowering, mean->input(0)) == Through(lowering, sub->input(0));
  return same ? Through(lowering, sub->input(0)) : "";
}

// A vector of parameters over the last dimension of `x`.
Result<bool> IsVectorFor(Lowering& lowering, const std::string& name, const Value& x,
                         Value* vector) {
  const proto::TensorProto* const tensor = lowering.file().FindInitializer(Through(lowering, name));
  if (tensor == nullptr || lowering.graph().IsConstant(Through(lowering, name))) return false;
  ENGINE_ASSIGN_OR_RETURN(*vector, lowering.Get(Through(lowering, name)));
  return IsVector(*vector, x.Shape().back());
}

// normalised * weight: layer norm if what is normalised is centred, else RMS norm. `bias`: the name
// of what is added, or "".
Result<bool> LowerWeightedNorm(Lowering& lowering, const Node& node, const Node& mul,
                               const std::string& bias) {
  for (size_t i = 0; i < 2; ++i) {
    double epsilon = 0;
    const std::string normalised = Normalised(lowering, mul.input(i), &epsilon);
    if (normalised.empty()) continue;
    const std::string centred = Uncentred(lowering, normalised);
    if (centred.empty() && !bias.empty()) return false;
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Get(centred.empty() ? normalised : centred));
    Value weight, offset;
    ENGINE_ASSIGN_OR_RETURN(bool fits, IsVectorFor(lowering, mul.input(1 - i), x, &weight));
    if (fits && !bias.empty()) {
      ENGINE_ASSIGN_OR_RETURN(fits, IsVectorFor(lowering, bias, x, &offset));
    }
    if (!fits) return false;
    ENGINE_RETURN_IF_ERROR(LowerNorm(lowering, node, centred.empty() ? "rms_norm" : "layer_norm", x,
                                     1, weight, bias.empty() ? nullptr : &offset, epsilon));
    return true;
  }
  return false;
}

// What PyTorch writes for nn.GroupNorm: an instance norm of groups, called (N, G, L) meanwhile, then
// weight and bias of channels.
Result<bool> LowerGroupedNorm(Lowering& lowering, const Node& node, const Node& mul,
                              const std::string& bias) {
  for (size_t i = 0; i < 2; ++i) {
    const Node* const back = SoleProducer(lowering, mul.input(i), "Reshape");
    const Node* const norm =
        back != nullptr ? SoleProducer(lowering, back->input(0), "InstanceNormalization") : nullptr;
    const Node* const grouped =
        norm != nullptr ? SoleProducer(lowering, norm->input(0), "Reshape") : nullptr;
    if (grouped == nullptr || !lowering.graph().IsConstant(norm->input(1))) continue;
    ENGINE_ASSIGN_OR_RETURN(const auto ones, lowering.Constant(*norm, 1));
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(*grouped, 0));
    ENGINE_ASSIGN_OR_RETURN(const Value weight, lowering.Get(mul.input(1 - i)));
    ENGINE_ASSIGN_OR_RETURN(const Value offset, lowering.Get(bias));
    const int64_t channels = x.layout.rank() > 1 ? x.Shape()[1] : 0;
    const Dims vector = {channels};
    if (weight.layout.axes != vector || offset.layout.axes != vector || weight.parameter.empty() ||
        offset.parameter.empty()) {
      continue;
    }
    ENGINE_RETURN_IF_ERROR(LowerGroupNorm(lowering, node, x, ones->count(), weight, offset,
                                          norm->Float("epsilon", 1e-5)));
    return true;
  }
  return false;
}

// The factors of a product of products, each used here alone.
void CollectFactors(Lowering& lowering, const Node& node, std::vector<std::string>* factors,
                    double* number) {
  for (size_t i = 0; i < 2; ++i) {
    double scalar = 1;
    const Node* const inner = SoleProducer(lowering, node.input(i), "Mul");
    if (lowering.IsScalar(node.input(i), &scalar)) {
      *number *= scalar;
    } else if (inner != nullptr) {
      CollectFactors(lowering, *inner, factors, number);
    } else {
      factors->push_back(Through(lowering, node.input(i)));
    }
  }
}

// f for a `factor` that is f(x), as x f(x) or 0.5 x f(x): the op that is that, or null.
const char* ActivationOf(Lowering& lowering, const std::string& factor, const std::string& x,
                         double number) {
  const auto is_x = [&](const std::string& name) { return Through(lowering, name) == x; };
  double scalar = 0;
  std::string inner, argument;
  if (const Node* const add = SoleProducer(lowering, factor, "Add");
      add != nullptr && IsNear(number, 0.5) && HasScalar(lowering, *add, &scalar, &inner) &&
      IsNear(scalar, 1)) {
    const Node* const erf = SoleProducer(lowering, inner, "Erf");
    const Node* const div = erf != nullptr ? SoleProducer(lowering, erf->input(0), "Div") : nullptr;
    if (div != nullptr && is_x(div->input(0)) &&
        IsScalarNear(lowering, div->input(1), std::sqrt(2.0))) {
      return "gelu_erf";
    }
    const Node* const mul = erf != nullptr ? SoleProducer(lowering, erf->input(0), "Mul") : nullptr;
    if (mul != nullptr && HasScalar(lowering, *mul, &scalar, &argument) && is_x(argument) &&
        IsNear(scalar, std::sqrt(0.5))) {
      return "gelu_erf";
    }
    // tanh(sqrt(2 / pi) (x + 0.044715 x^3))
    const Node* const tanh = SoleProducer(lowering, inner, "Tanh");
    const Node* const root =
        tanh != nullptr ? SoleProducer(lowering, tanh->input(0), "Mul") : nullptr;
    if (root == nullptr || !HasScalar(lowering, *root, &scalar, &argument) ||
        !IsNear(scalar, std::sqrt(2 / M_PI))) {
      return nullptr;
    }
    const Node* const sum = SoleProducer(lowering, argument, "Add");
    for (size_t i = 0; sum != nullptr && i < 2; ++i) {
      const Node* const cubic = SoleProducer(lowering, sum->input(i), "Mul");
      if (!is_x(sum->input(1 - i)) || cubic == nullptr ||
          !HasScalar(lowering, *cubic, &scalar, &argument) || !IsNear(scalar, 0.044715)) {
        continue;
      }
      const Node* const pow = SoleProducer(lowering, argument, "Pow");
      if (pow != nullptr && is_x(pow->input(0)) && IsScalarNear(lowering, pow->input(1), 3))
        return "gelu";
    }
    return nullptr;
  }
  if (!IsNear(number, 1)) return nullptr;
  if (const Node* const sigmoid = SoleProducer(lowering, factor, "Sigmoid")) {
    return is_x(sigmoid->input(0)) ? "silu" : nullptr;
  }
  if (const Node* const hard = SoleProducer(lowering, factor, "HardSigmoid")) {
    const bool standard =
        IsNear(hard->Float("alpha", 0.2), 1.0 / 6) && IsNear(hard->Float("beta", 0.5), 0.5);
    return standard && is_x(hard->input(0)) ? "hard_swish" : nullptr;
  }
  const Node* const tanh = SoleProducer(lowering, factor, "Tanh");
  const Node* const plus =
      tanh != nullptr ? SoleProducer(lowering, tanh->input(0), "Softplus") : nullptr;
  return plus != nullptr && is_x(plus->input(0)) ? "mish" : nullptr;
}

}  // namespace

bool IsNear(double a, double b) {
  return std::abs(a - b) <= 1e-5 * std::abs(b);
}

const Node* SoleProducer(Lowering& lowering, const std::string& value, std::string_view type) {
  if (lowering.graph().Uses(value) > 1) return nullptr;
  const std::string from = Through(lowering, value);
  const Node* const node = lowering.graph().Producer(from);
  return node != nullptr && node->type() == type && lowering.graph().Uses(from) == 1 ? node
                                                                                     : nullptr;
}

bool HasScalar(Lowering& lowering, const Node& node, double* scalar, std::string* other) {
  for (size_t i = 0; i < 2; ++i) {
    if (!lowering.IsScalar(node.input(i), scalar)) continue;
    *other = node.input(1 - i);
    return true;
  }
  return false;
}

Result<bool> LowerNormPattern(Lowering& lowering, const Node& node) {
  if (node.type() == "Mul") return LowerWeightedNorm(lowering, node, node, "");
  for (size_t i = 0; node.type() == "Add" && i < 2; ++i) {
    const Node* const mul = SoleProducer(lowering, node.input(i), "Mul");
    if (mul == nullptr) continue;
    for (const auto pattern : {LowerWeightedNorm, LowerGroupedNorm}) {
      ENGINE_ASSIGN_OR_RETURN(const bool found, pattern(lowering, node, *mul, node.input(1 - i)));
      if (found) return true;
    }
  }
  return false;
}

Result<bool> LowerActivationPattern(Lowering& lowering, const Node& node) {
  if (node.type() != "Mul") return false;
  std::vector<std::string> factors;
  double number = 1;
  CollectFactors(lowering, node, &factors, &number);
  if (factors.size() != 2) return false;
  for (size_t i = 0; i < 2; ++i) {
    const char* const op = ActivationOf(lowering, factors[i], factors[1 - i], number);
    if (op == nullptr) continue;
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Get(factors[1 - i]));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Engine(x));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue made, lowering.Emit(node.name(), op, {input}));
    lowering.Set(node.output(0), {.engine = made, .layout = x.layout});
    return true;
  }
  return false;
}

Result<bool> LowerBiasPattern(Lowering& lowering, const Node& node) {
  for (size_t i = 0; node.type() == "Add" && i < 2; ++i) {
    const Node* const product = SoleProducer(lowering, node.input(i), "MatMul");
    const proto::TensorProto* const tensor = lowering.file().FindInitializer(node.input(1 - i));
    if (product == nullptr || tensor == nullptr || lowering.graph().IsConstant(product->input(1)))
      continue;
    ENGINE_ASSIGN_OR_RETURN(const Value weight, lowering.Input(*product, 1));
    ENGINE_ASSIGN_OR_RETURN(const Value bias, lowering.Get(node.input(1 - i)));
    if (!IsMatrix(weight) || !IsVector(bias, weight.Shape()[1])) continue;
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Input(*product, 0));
    ENGINE_RETURN_IF_ERROR(LowerLinear(lowering, node, x, weight, &bias));
    return true;
  }
  return false;
}

}  // namespace engine::onnx
