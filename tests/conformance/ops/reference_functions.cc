#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/conformance/ops/reference_array_ops.h"

namespace engine::test {
namespace {

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

double HardSigmoid(double x) {
  return std::clamp(x / 6 + 0.5, 0.0, 1.0);
}

double Softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

double Gelu(double x) {
  return 0.5 * x *
         (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

template <auto kFunction>
Values Each(Inputs inputs, const Options& attributes) {
  Values y = inputs[0].values;
  for (double& value : y) {
    if constexpr (requires { kFunction(value, attributes); }) {
      value = kFunction(value, attributes);
    } else {
      value = kFunction(value);
    }
  }
  return y;
}

}  // namespace

const ReferenceFormulas& ReferenceFunctions() {
  static const ReferenceFormulas formulas = {
      {"relu", Each<[](double x) { return std::max(x, 0.0); }>},
      {"gelu", Each<Gelu>},
      {"tanh", Each<[](double x) { return std::tanh(x); }>},
      {"flatten", Each<[](double x) { return x; }>},
      {"reshape", Each<[](double x) { return x; }>},
      {"sigmoid", Each<Sigmoid>},
      {"silu", Each<[](double x) { return x * Sigmoid(x); }>},
      {"hard_sigmoid", Each<HardSigmoid>},
      {"hard_swish", Each<[](double x) { return x * HardSigmoid(x); }>},
      {"gelu_erf",
       Each<[](double x) { return x * 0.5 * (1 + std::erf(x / std::numbers::sqrt2)); }>},
      {"exp", Each<[](double x) { return std::exp(x); }>},
      {"log", Each<[](double x) { return std::log(x); }>},
      {"sqrt", Each<[](double x) { return std::sqrt(x); }>},
      {"reciprocal", Each<[](double x) { return 1 / x; }>},
      {"abs", Each<[](double x) { return std::abs(x); }>},
      {"erf", Each<[](double x) { return std::erf(x); }>},
      {"sin", Each<[](double x) { return std::sin(x); }>},
      {"cos", Each<[](double x) { return std::cos(x); }>},
      {"softplus", Each<Softplus>},
      {"mish", Each<[](double x) { return x * std::tanh(Softplus(x)); }>},
      {"leaky_relu",
       Each<[](double x, const Options& a) { return x < 0 ? a.Float("slope") * x : x; }>},
      {"elu", Each<[](double x, const Options& a) {
         return x < 0 ? a.Float("alpha") * std::expm1(x) : x;
       }>},
      {"clip", Each<[](double x, const Options& a) {
         return std::clamp(x, a.Float("min"), a.Float("max"));
       }>},
      {"scale",
       Each<[](double x, const Options& a) { return a.Float("factor") * x + a.Float("offset"); }>},
      {"pow", Each<[](double x, const Options& a) { return std::pow(x, a.Float("exponent")); }>}};
  return formulas;
}

}  // namespace engine::test
