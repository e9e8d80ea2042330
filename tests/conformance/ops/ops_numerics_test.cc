// Ops at the ends of the range of their inputs, where a formula that is right in the middle
// overflows or cancels.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class OpNumerics : public ::testing::TestWithParam<std::string> {
 protected:
  // The result of `op` with these values as input 0; further inputs as given.
  RunResult RunOn(const OpCase& op_case, const std::vector<Values>& values) const {
    MadeOp made = MakeOp(ops_, op_case);
    Problem problem = MakeProblem(op_case, made.signature, op_case.inputs[0].shape[0], 1);
    for (size_t i = 0; i < values.size(); ++i) problem.inputs[i].values = values[i];
    if (made.signature.is_loss == 0) {
      std::fill(problem.output_gradients[0].values.begin(),
                problem.output_gradients[0].values.end(), 1.0);
    }
    return RunChecked(ops_, made, op_case, problem);
  }

  const LoadedOps ops_ = LoadedOps::Load(GetParam(), 1);
};

OpCase Elementwise(const std::string& op, size_t count, ReferenceOp reference) {
  return {.name = op,
          .op = op,
          .inputs = {{Shape{static_cast<int64_t>(count)}, DType::kFloat32, 1}},
          .reference = std::move(reference)};
}

TEST_P(OpNumerics, FunctionsAreAccurateFromTinyToHuge) {
  Values x = {0, 100, -100, 1e4, -1e4};
  for (double magnitude = 1e-30; magnitude < 50; magnitude *= 1.07) {
    x.push_back(static_cast<float>(magnitude));
    x.push_back(static_cast<float>(-magnitude));
  }
  const struct {
    const char* op;
    ReferenceOp reference;
  } functions[] = {{"tanh", ReferenceTanh()}, {"gelu", ReferenceGelu()}};
  for (const auto& function : functions) {
    const RunResult result = RunOn(Elementwise(function.op, x.size(), function.reference), {x});
    const Tensor input{{Shape{static_cast<int64_t>(x.size())}}, x};
    const Values want = function.reference.forward({input});
    const Values slopes = function.reference.backward({input}, Values(x.size(), 1.0))[0];
    for (size_t i = 0; i < x.size(); ++i) {
      // Relative, but for gelu's tail, where y vanishes beside x.
      const double scale = std::max(std::abs(want[i]), std::min(std::abs(x[i]), 1.0));
      EXPECT_NEAR(result.outputs[0][i], want[i], 4e-7 * scale) << function.op << "(" << x[i] << ")";
      EXPECT_NEAR(result.gradients[0][i], slopes[i], 2e-6) << function.op << "'(" << x[i] << ")";
    }
  }
}

TEST_P(OpNumerics, NotANumberIsNotHidden) {
  for (const char* op : {"relu", "gelu", "tanh"}) {
    const RunResult result = RunOn(Elementwise(op, 3, ReferenceRelu()), {{1, NAN, 1}});
    EXPECT_FALSE(std::isnan(result.outputs[0][0])) << op;
    EXPECT_TRUE(std::isnan(result.outputs[0][1])) << op;
  }
}

TEST_P(OpNumerics, LossOfExtremeLogitsIsFinite) {
  const OpCase op_case = {
      .name = "Loss",
      .op = "softmax_cross_entropy",
      .inputs = {{Shape{4, 3}, DType::kFloat32, 1}, {Shape{4}, DType::kInt32, 1}},
      .reference = ReferenceSoftmaxCrossEntropy(),
      .classes = 3};
  const RunResult result = RunOn(op_case, {{1e4, 0, -1e4,       // certain and right: 0
                                            1e4, 0, -1e4,       // certain and wrong: 1e4
                                            -kInfinity, 0, 0,   // a class ruled out: log 2
                                            -3e4, -3e4, -3e4},  // equal: log 3, first is "it"
                                           {0, 1, 1, 0}});
  EXPECT_NEAR(result.outputs[0][0], 1e4 + std::log(2.0) + std::log(3.0), 1e-2);
  EXPECT_EQ(result.outputs[0][1], 4);
  EXPECT_EQ(result.outputs[0][2], 3);
  const std::vector<float> want = {0, 0, 0, 1, -1, 0, 0, -0.5, 0.5, -2.0f / 3, 1.0f / 3, 1.0f / 3};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(result.gradients[0][i], want[i], 2e-3) << "element " << i;
  }
}

TEST_P(OpNumerics, LayerNormKeepsItsPrecisionAroundALargeMean) {
  const OpCase op_case = {.name = "LayerNorm",
                          .op = "layer_norm",
                          .inputs = {{Shape{2, 4}, DType::kFloat32, 1}},
                          .reference = ReferenceLayerNorm(1e-5)};
  const Values x = {4096, 4097, 4098, 4099, 7, 7, 7, 7};
  const Values weight = {1, 2, 3, 4}, bias = {5, 6, 7, 8};
  const RunResult result = RunOn(op_case, {x, weight, bias});
  const Values want = op_case.reference.forward(
      {Tensor{op_case.inputs[0], x}, Tensor{{Shape{4}}, weight}, Tensor{{Shape{4}}, bias}});
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(result.outputs[0][i], want[i], 1e-5 * std::abs(want[i])) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, OpNumerics, ::testing::ValuesIn(PluginPaths({"cpu_ops"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
