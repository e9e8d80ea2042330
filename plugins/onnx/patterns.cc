#include "patterns.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "norms.h"
#include "products.h"

namespace engine::onnx {
namespace {

// A pattern is a term:
//
//   term = Type "(" term {", " term} ")"   a node, whose factors or summands may be in any order; those
//                                          of products in products are factors of one
//        | number                          a constant with this value
//        | name                            a value: the same one wherever the name stands
//        | "_"                             any value
using Values = std::map<std::string, std::string, std::less<>>;  // of the names

// The terms between the brackets of one.
std::vector<std::string_view> Arguments(std::string_view term) {
  std::vector<std::string_view> arguments;
  const size_t open = term.find('(');
  size_t begin = open + 1;
  for (size_t at = begin, depth = 0; at < term.size(); ++at) {
    if (depth == 0 && (term[at] == ',' || term[at] == ')')) {
      arguments.push_back(term.substr(begin, at - begin));
      begin = at + 2;
    }
    depth += term[at] == '(' ? 1 : 0;
    depth -= term[at] == ')' && depth > 0 ? 1 : 0;
  }
  return arguments;
}

// Without nodes that change nothing.
std::string Through(Lowering& lowering, std::string value) {
  while (const Node* const node = lowering.graph().Producer(value)) {
    double rate = 1;
    const bool idle_dropout = node->type() == "Dropout" && node->HasInput(1) &&
                              lowering.IsScalar(node->input(1), &rate) && rate == 0;
    const bool cast = node->type() == "Cast" && IsFloat(node->Int("to", 0));
    if (!cast && !idle_dropout && node->type() != "Identity") break;
    value = node->input(0);
  }
  return value;
}

// Whether patterns mean the node: a mean is over the last dimension, which stays.
bool IsUsual(const Node& node) {
  if (node.type() == "HardSigmoid") {
    return IsNear(node.Float("alpha", 0.2), 1.0 / 6) && IsNear(node.Float("beta", 0.5), 0.5);
  }
  return node.type() != "ReduceMean" ||
         (node.Ints("axes") == Dims{-1} && node.Int("keepdims", 1) != 0);
}

void CollectFactors(Lowering& lowering, const Node& node, std::vector<std::string>* factors) {
  for (const std::string& input : node.proto().input()) {
    if (const Node* const inner = SoleProducer(lowering, input, "Mul")) {
      CollectFactors(lowering, *inner, factors);
    } else {
      factors->push_back(input);
    }
  }
}

bool Matches(Lowering& lowering, const Node& node, std::string_view term, Values* values);

bool Matches(Lowering& lowering, const std::string& value, std::string_view term, Values* values) {
  if (term == "_") return true;
  if (std::isdigit(static_cast<unsigned char>(term[0])) != 0) {
    double number = 0;
    return lowering.IsScalar(value, &number) &&
           IsNear(number, std::atof(std::string(term).c_str()));
  }
  const size_t open = term.find('(');
  if (open == std::string_view::npos) {
    const std::string name = Through(lowering, value);
    return values->emplace(term, name).first->second == name;
  }
  const Node* const node = SoleProducer(lowering, value, term.substr(0, open));
  return node != nullptr && Matches(lowering, *node, term, values);
}

// In the first order that fits: a pattern is written so that no other one is needed.
bool Matches(Lowering& lowering, const Node& node, std::string_view term, Values* values) {
  if (node.type() != term.substr(0, term.find('(')) || !IsUsual(node)) return false;
  const std::vector<std::string_view> wanted = Arguments(term);
  const bool product = node.type() == "Mul";
  std::vector<std::string> inputs(node.proto().input().begin(), node.proto().input().end());
  if (product) {
    inputs.clear();
    CollectFactors(lowering, node, &inputs);
  }
  if (inputs.size() != wanted.size()) return false;
  std::vector<size_t> order(inputs.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    Values trial = *values;
    size_t fit = 0;
    while (fit < order.size() && Matches(lowering, inputs[order[fit]], wanted[fit], &trial)) ++fit;
    if (fit == order.size()) {
      *values = std::move(trial);
      return true;
    }
  } while ((product || node.type() == "Add") && std::ranges::next_permutation(order).found);
  return false;
}

// As Matches, of whatever gives the value, which others may read too.
bool Gives(Lowering& lowering, const std::string& value, std::string_view term, Values* values) {
  const Node* const node = lowering.graph().Producer(value);
  return node != nullptr && Matches(lowering, *node, term, values);
}

// A vector of parameters over the last dimension of `x`.
Result<bool> IsVectorFor(Lowering& lowering, const std::string& name, const Value& x,
                         Value* vector) {
  if (lowering.file().FindInitializer(name) == nullptr || lowering.graph().IsConstant(name)) {
    return false;
  }
  ENGINE_ASSIGN_OR_RETURN(*vector, lowering.Get(name));
  return IsVector(*vector, x.Shape().back());
}

// c / sqrt(mean(c^2) + epsilon) * weight: layer norm if c is centred, else RMS norm, without `bias`.
Result<bool> LowerLastNorm(Lowering& lowering, const Node& node) {
  const bool biased = node.type() == "Add";
  constexpr std::string_view kForms[] = {"Div(c, Sqrt(Add(ReduceMean(square), epsilon)))",
                                         "c, Reciprocal(Sqrt(Add(ReduceMean(square), epsilon)))",
                                         "c, Div(1, Sqrt(Add(ReduceMean(square), epsilon)))"};
  for (size_t i = 0; i < 2 * std::size(kForms); ++i) {
    std::string term = "Mul(weight, " + std::string(kForms[i / 2]) + ")";
    term.replace(term.find("square"), 6, i % 2 == 0 ? "Pow(c, 2)" : "Mul(c, c)");
    if (biased) term = "Add(" + term + ", bias)";
    Values found;
    double epsilon = 0;
    if (!Matches(lowering, node, term, &found) || !lowering.IsScalar(found["epsilon"], &epsilon)) {
      continue;
    }
    const bool centred = Gives(lowering, found["c"], "Sub(x, ReduceMean(x))", &found);
    if (biased && !centred) return false;
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Get(found[centred ? "x" : "c"]));
    Value weight, bias;
    ENGINE_ASSIGN_OR_RETURN(bool fits, IsVectorFor(lowering, found["weight"], x, &weight));
    if (fits && biased) {
      ENGINE_ASSIGN_OR_RETURN(fits, IsVectorFor(lowering, found["bias"], x, &bias));
    }
    if (!fits) return false;
    ENGINE_RETURN_IF_ERROR(LowerNorm(lowering, node, centred ? "layer_norm" : "rms_norm", x, 1,
                                     weight, biased ? &bias : nullptr, epsilon));
    return true;
  }
  return false;
}

// What PyTorch writes for nn.GroupNorm: an instance norm of groups, called (N, G, L) meanwhile, then
// weight and bias of channels.
Result<bool> LowerGroupedNorm(Lowering& lowering, const Node& node) {
  Values found;
  if (!Matches(lowering, node, "Add(Mul(Reshape(y, _), weight), bias)", &found) ||
      !Gives(lowering, found["y"], "InstanceNormalization(Reshape(x, _), ones, _)", &found) ||
      !lowering.graph().IsConstant(found["ones"])) {
    return false;
  }
  const Node& norm = *lowering.graph().Producer(found["y"]);
  ENGINE_ASSIGN_OR_RETURN(const auto ones, lowering.Constant(norm, 1));
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Get(found["x"]));
  ENGINE_ASSIGN_OR_RETURN(const Value weight, lowering.Get(found["weight"]));
  ENGINE_ASSIGN_OR_RETURN(const Value bias, lowering.Get(found["bias"]));
  const Dims vector = {x.layout.rank() > 1 ? x.Shape()[1] : 0};
  if (weight.layout.axes != vector || bias.layout.axes != vector || weight.parameter.empty() ||
      bias.parameter.empty()) {
    return false;
  }
  ENGINE_RETURN_IF_ERROR(
      LowerGroupNorm(lowering, node, x, ones->count(), weight, bias, norm.Float("epsilon", 1e-5)));
  return true;
}

Result<bool> LowerActivation(Lowering& lowering, const Node& node) {
  constexpr std::pair<const char*, const char*> kActivations[] = {
      {"Mul(x, 0.5, Add(Erf(Div(x, 1.41421356)), 1))", "gelu_erf"},
      {"Mul(x, 0.5, Add(Erf(Mul(x, 0.70710678)), 1))", "gelu_erf"},
      {"Mul(x, 0.5, Add(Tanh(Mul(Add(x, Mul(Pow(x, 3), 0.044715)), 0.79788456)), 1))", "gelu"},
      {"Mul(x, 0.5, Add(Tanh(Mul(Add(x, Mul(x, x, x, 0.044715)), 0.79788456)), 1))", "gelu"},
      {"Mul(x, Sigmoid(x))", "silu"},
      {"Mul(x, HardSigmoid(x))", "hard_swish"},
      {"Mul(x, Tanh(Softplus(x)))", "mish"}};
  for (const auto& [term, op] : kActivations) {
    Values found;
    if (!Matches(lowering, node, term, &found)) continue;
    ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Get(found["x"]));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue input, lowering.Engine(x));
    ENGINE_RETURN_IF_ERROR(GiveOp(lowering, node, op, {input}, {}, x.layout));
    return true;
  }
  return false;
}

Result<bool> LowerBias(Lowering& lowering, const Node& node) {
  Values found;
  if (!Matches(lowering, node, "Add(MatMul(x, weight), bias)", &found) ||
      lowering.file().FindInitializer(found["bias"]) == nullptr ||
      lowering.graph().IsConstant(found["weight"])) {
    return false;
  }
  ENGINE_ASSIGN_OR_RETURN(const Value weight, lowering.Get(found["weight"]));
  ENGINE_ASSIGN_OR_RETURN(const Value bias, lowering.Get(found["bias"]));
  if (!IsMatrix(weight) || !IsVector(bias, weight.Shape()[1])) return false;
  ENGINE_ASSIGN_OR_RETURN(const Value x, lowering.Get(found["x"]));
  ENGINE_RETURN_IF_ERROR(LowerLinear(lowering, node, x, weight, &bias));
  return true;
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

Result<bool> LowerPattern(Lowering& lowering, const Node& node) {
  for (const auto pattern : {LowerLastNorm, LowerGroupedNorm, LowerActivation, LowerBias}) {
    ENGINE_ASSIGN_OR_RETURN(const bool found, pattern(lowering, node));
    if (found) return true;
  }
  return false;
}

}  // namespace engine::onnx
