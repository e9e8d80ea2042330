// Every op of every op plugin against its formula; all else that an op must do the conformance kit
// judges (tools/conform/ops). To judge another library: ENGINE_CONFORMANCE_PLUGINS=/path/libengine_x.so.
// A case whose op the library does not have is not registered for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/ops/op_rig.h"
#include "tests/support/words.h"

namespace engine::test {
namespace {

// A case of a library in one precision.
struct Param {
  std::string path;
  OpSample sample;
  DType activation = DType::kFloat32;

  // "libengine_cpu_ops_linear_units_33_float32_5_7"
  std::string Name() const {
    static const std::regex minus("-"), others("[^A-Za-z0-9]+");
    const std::string text = std::regex_replace(sample.Text(), minus, "minus");
    std::string name = NameOfLibrary(path) + "_" + std::regex_replace(text, others, "_");
    if (sample.inputs[0].shape.Count() > 10000) name += "large";
    return name + (activation == DType::kBFloat16 ? "_run_in_bf16" : "");
  }
};

void PrintTo(const Param& param, std::ostream* out) {
  *out << param.sample.Text() << " of " << param.path << " in " << Name(param.activation);
}

// As a run in bfloat16 has it: with what losses compare with, and parameters that are no matrices, in
// float32. With `keeps_float32`, some inputs are that, too: of "accumulate", which adds gradients of
// parameters, both, of others, the first (the batch).
OpSample InBFloat16(OpSample sample, bool keeps_float32) {
  static const std::set<std::string> first_alone = {
      "softmax_cross_entropy", "mean_squared_error", "mean_absolute_error", "huber", "layer_norm",
      "binary_cross_entropy",  "rms_norm",           "group_norm",          "prelu"};
  if (keeps_float32 && sample.op == "accumulate") return sample;
  const size_t end = first_alone.contains(sample.op) ? 1 : sample.inputs.size();
  for (size_t i = keeps_float32 ? 1 : 0; i < end; ++i) {
    DType& dtype = sample.inputs[i].dtype;
    if (dtype == DType::kFloat32) dtype = DType::kBFloat16;
  }
  return sample;
}

// Each in float32, then in bfloat16, if there is that; in such a run the ops that models begin with
// take float32 as well. Ops that are computed in float32 and `rounded` get one of several
// shapes.
std::vector<Param> Params() {
  const std::vector<std::string> begin = {"linear", "flatten", "reshape", "to_channels_last",
                                          "accumulate"};
  const std::vector<std::string> rounded = Words(
      "subtract multiply matmul group_norm reduce_mean reduce_sum softmax dropout log_softmax "
      "resize conv_transpose2d mean_squared_error scaled_dot_product_attention");
  std::vector<Param> params;
  for (const std::string& path : PluginPaths({"cpu_ops"})) {
    OpSample last;
    for (const OpSample& sample : FormulaCases()) {
      if (std::ranges::count(Plugin(path).ops(), sample.op) == 0) continue;
      const bool again = sample.op == last.op && sample.attributes == last.attributes;
      last = sample;
      params.push_back({path, sample});
      // Of several largest numbers, which bfloat16 has, there is no derivative.
      if (!HasBFloat16(path) || sample.op == "reduce_max") continue;
      if (again && std::ranges::count(rounded, sample.op) > 0) continue;
      params.push_back({path, InBFloat16(sample, false), DType::kBFloat16});
      if (std::ranges::count(begin, sample.op) == 0) continue;
      params.push_back({path, InBFloat16(sample, true), DType::kBFloat16});
    }
  }
  return params;
}

void ExpectSame(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.outputs, b.outputs);
  EXPECT_EQ(a.gradients, b.gradients);
}

class OpConformance : public ::testing::TestWithParam<Param> {
 protected:
  static Fed Feed(int threads = 1, bool tune = false) {
    const auto& [path, sample, activation] = GetParam();
    return Fed(path, sample, {.threads = threads, .activation = activation, .tune = tune});
  }
  // Takes longer than the op, and is the same in all tests.
  static const Expected& ExpectedOf(const Fed& fed, int64_t samples) {
    static std::map<std::pair<std::string, int64_t>, Expected> all;
    return all.try_emplace({GetParam().Name(), samples}, fed).first->second;
  }
  static const Expected& ExpectedOf(const Fed& fed) {
    return ExpectedOf(fed, fed.sample.samples());
  }
};

TEST_P(OpConformance, MatchesTheFormula) {
  Fed fed = Feed();
  ExpectedOf(fed).Check(fed.Run());
}

TEST_P(OpConformance, MatchesTheFormulaInPlaceWithFewerSamples) {
  Fed fed = Feed();
  const uint32_t all = fed.op.signature.accumulates;
  for (int64_t samples = fed.sample.samples(); samples > 0; samples /= 3) {
    SCOPED_TRACE(std::to_string(samples) + " samples");
    fed.Feed(samples);
    const Expected& expected = ExpectedOf(fed, samples);
    expected.Check(fed.Run({.accumulate = all, .in_place = true}), all);
    expected.Check(fed.Run({.share_gradient = true, .gradient_in_place = true}));
  }
}

// Products are then done by what is found to be fastest at their first call.
TEST_P(OpConformance, MatchesTheFormulaWithWhatWasMeasured) {
  const auto measures = [](const OptionSpec& spec) { return spec.name.view() == "tune"; };
  if (std::ranges::none_of(Plugin(GetParam().path).option_specs(), measures)) return;
  Fed fed = Feed(1, true);
  for (const uint32_t accumulate : {0u, fed.op.signature.accumulates}) {
    const RunResult first = fed.Run({.accumulate = accumulate});
    ExpectedOf(fed).Check(first, accumulate);
    ExpectSame(fed.Run({.accumulate = accumulate}), first);
  }
}

TEST_P(OpConformance, SeveralThreadsMatchTheFormulaAndRunsAreBitwiseEqual) {
  Fed fed = Feed(3);
  const RunResult first = fed.Run();
  ExpectedOf(fed).Check(first);
  ExpectSame(fed.Run(), first);
}

INSTANTIATE_TEST_SUITE_P(, OpConformance, ::testing::ValuesIn(Params()),
                         [](const auto& test) { return test.param.Name(); });

TEST(FormulaCases, EveryOpOfOursHasOne) {
  const std::vector<OpSample> cases = FormulaCases();
  for (const std::string& path : PluginPaths({"cpu_ops"})) {
    for (const std::string& name : Plugin(path).ops()) {
      EXPECT_TRUE(std::ranges::count(cases, name, &OpSample::op) > 0)
          << "no case for op " << name << ": add one to formula_cases.cc";
    }
  }
}

}  // namespace
}  // namespace engine::test
