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
  // A sample with these values as inputs, and further ones as they come. Gradients of the outputs
  // are 1.
  Fed Feed(const std::string& text, const std::vector<Values>& values) const {
    Fed fed(GetParam(), Sample(text));
    for (size_t i = 0; i < values.size(); ++i) fed.problem.inputs[i].values = values[i];
    if (fed.op.signature.is_loss == 0) {
      std::ranges::fill(fed.problem.output_gradients[0].values, 1.0);
    }
    return fed;
  }
};

TEST_P(OpNumerics, FunctionsAreAccurateFromTinyToHuge) {
  Values x = {0, 100, -100, 1e4, -1e4};
  for (double magnitude = 1e-30; magnitude < 50; magnitude *= 1.07) {
    x.push_back(static_cast<float>(magnitude));
    x.push_back(static_cast<float>(-magnitude));
  }
  for (const std::string op : {"tanh", "gelu", "gelu_erf", "sigmoid", "silu", "erf", "elu",
                               "softplus", "mish", "hard_swish"}) {
    if (!HasOp(GetParam(), op)) continue;
    Fed fed = Feed(op + "=float32[" + std::to_string(x.size()) + "*]", {x});
    const RunResult result = fed.Run();
    const auto at = [&](double step) {
      Values moved = x;
      for (double& value : moved) value += step;
      return fed.formula({Tensor{{}, moved}});
    };
    const Values want = at(0), above = at(1e-6), below = at(-1e-6);
    for (size_t i = 0; i < x.size(); ++i) {
      // Relative, but for gelu's tail, where y vanishes beside x.
      const double scale = std::max(std::abs(want[i]), std::min(std::abs(x[i]), 1.0));
      EXPECT_NEAR(result.outputs[0][i], want[i], 4e-7 * scale) << op << "(" << x[i] << ")";
      EXPECT_NEAR(result.gradients[0][i], (above[i] - below[i]) / 2e-6, 2e-6)
          << op << "'(" << x[i] << ")";
    }
  }
}

TEST_P(OpNumerics, NotANumberIsNotHidden) {
  for (const char* op :
       {"relu", "gelu", "tanh", "gelu_erf", "sigmoid", "silu", "clip", "exp", "log", "softplus",
        "mish", "elu", "leaky_relu", "hard_swish", "sqrt", "erf"}) {
    if (!HasOp(GetParam(), op)) continue;
    const RunResult result = Feed(op + std::string("=float32[3*]"), {{1, NAN, 1}}).Run();
    EXPECT_FALSE(std::isnan(result.outputs[0][0])) << op;
    EXPECT_TRUE(std::isnan(result.outputs[0][1])) << op;
  }
}

TEST_P(OpNumerics, SoftmaxOfExtremeNumbersIsFinite) {
  if (!HasOp(GetParam(), "softmax")) GTEST_SKIP() << "the library has no softmax";
  const Values x = {1e4, 0, -1e4, -kInfinity, 0, 0, -3e4, -3e4, -3e4};
  const std::vector<float> want = {1, 0, 0, 0, 0.5, 0.5, 1.0f / 3, 1.0f / 3, 1.0f / 3};
  for (const char* text : {"softmax=float32[3*,3]", "softmax(axis=1)=float32[3*,3,1]"}) {
    const RunResult result = Feed(text, {x}).Run();
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(result.outputs[0][i], want[i], 1e-6) << i;
  }
  const RunResult log = Feed("log_softmax=float32[3*,3]", {x}).Run();
  EXPECT_EQ(log.outputs[0][1], -1e4f);
  EXPECT_EQ(log.outputs[0][3], -kInfinity);
  EXPECT_NEAR(log.outputs[0][8], -std::log(3.0), 1e-2);
}

TEST_P(OpNumerics, EqualNumbersShareTheGradientOfTheLargest) {
  if (!HasOp(GetParam(), "reduce_max")) GTEST_SKIP() << "the library has no reduce_max";
  const Values x = {1, 3, 3, -1, 2, 2, 2, 1};
  const RunResult reduced = Feed("reduce_max=float32[2*,4]", {x}).Run();
  EXPECT_EQ(reduced.outputs[0], (std::vector<float>{3, 2}));
  const float third = 1.0f / 3;
  EXPECT_EQ(reduced.gradients[0], (std::vector<float>{0, 0.5f, 0.5f, 0, third, third, third, 0}));
  const RunResult larger = Feed("maximum=float32[3*],float32[3*]", {{1, 2, 3}, {3, 2, 1}}).Run();
  EXPECT_EQ(larger.outputs[0], (std::vector<float>{3, 2, 3}));
  EXPECT_EQ(larger.gradients[0], (std::vector<float>{0, 0.5f, 1}));
  EXPECT_EQ(larger.gradients[1], (std::vector<float>{1, 0.5f, 0}));
}

// A mask of -infinity is how exported models say that a query does not see a key.
TEST_P(OpNumerics, AttentionDoesNotSeeWhatIsMasked) {
  const std::string op = "scaled_dot_product_attention";
  if (!HasOp(GetParam(), op)) GTEST_SKIP() << "the library has no " << op;
  const Values mask = {0, -kInfinity, 0, 0};  // query 0 does not see key 1
  Fed masked = Feed(op + "=float32[1*,1,2,4],float32[1*,1,2,4],float32[1*,1,2,4],float32[2,2]", {});
  masked.problem.inputs[3].values = mask;
  Fed causal = Feed(op + "(causal=true)=float32[1*,1,2,4],float32[1*,1,2,4],float32[1*,1,2,4]", {});
  for (size_t i = 0; i < 3; ++i) causal.problem.inputs[i].values = masked.problem.inputs[i].values;
  const RunResult got = masked.Run(), want = causal.Run();
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(got.outputs[0][i], want.outputs[0][i], 1e-6) << i;
  for (size_t input = 0; input < 3; ++input) {
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_NEAR(got.gradients[input][i], want.gradients[input][i], 1e-6) << input << ", " << i;
    }
  }
}

TEST_P(OpNumerics, LossOfExtremeLogitsIsFinite) {
  const RunResult result = Feed("softmax_cross_entropy=float32[4*,3],int32[4*]",
                                {{1e4, 0, -1e4,       // certain and right: 0
                                  1e4, 0, -1e4,       // certain and wrong: 1e4
                                  -kInfinity, 0, 0,   // a class ruled out: log 2
                                  -3e4, -3e4, -3e4},  // equal: log 3, first is "it"
                                 {0, 1, 1, 0}})
                               .Run();
  EXPECT_NEAR(result.outputs[0][0], 1e4 + std::log(2.0) + std::log(3.0), 1e-2);
  EXPECT_EQ(result.outputs[0][1], 4);
  EXPECT_EQ(result.outputs[0][2], 3);
  const std::vector<float> want = {0, 0, 0, 1, -1, 0, 0, -0.5, 0.5, -2.0f / 3, 1.0f / 3, 1.0f / 3};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(result.gradients[0][i], want[i], 2e-3) << "element " << i;
  }
}

TEST_P(OpNumerics, BinaryCrossEntropyOfExtremeLogitsIsFinite) {
  const RunResult result = Feed("binary_cross_entropy(pos_weight=2)=float32[4*],float32[4*]",
                                {{1e4, -1e4, 1e4, -1e4}, {1, 0, 0, 1}})
                               .Run();
  EXPECT_EQ(result.outputs[0], (std::vector<float>{3e4, 4, 2}));
  EXPECT_EQ(result.gradients[0], (std::vector<float>{0, 0, 1, -2}));
}

TEST_P(OpNumerics, LayerNormKeepsItsPrecisionAroundALargeMean) {
  const Values x = {4096, 4097, 4098, 4099, 7, 7, 7, 7};
  const Values weight = {1, 2, 3, 4}, bias = {5, 6, 7, 8};
  Fed fed = Feed("layer_norm(epsilon=1e-5)=float32[2*,4]", {x, weight, bias});
  const RunResult result = fed.Run();
  const Values want = fed.formula(fed.problem.inputs);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(result.outputs[0][i], want[i], 1e-5 * std::abs(want[i])) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(, OpNumerics, ::testing::ValuesIn(PluginPaths({"cpu_ops"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
