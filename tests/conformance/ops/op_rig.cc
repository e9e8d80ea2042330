#include "tests/conformance/ops/op_rig.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>

namespace engine::test {

OpSample Sample(const std::string& text) {
  return Must(OpSample::Parse(text));
}

const PluginUnderTest& Plugin(const std::string& path) {
  static std::map<std::string, PluginUnderTest> all;
  const auto known = all.find(path);
  if (known != all.end()) return known->second;
  return all.emplace(path, Must(PluginUnderTest::Load(path))).first->second;
}

bool HasOp(const std::string& path, const std::string& op) {
  return std::ranges::count(Plugin(path).ops(), op) > 0;
}

bool HasBFloat16(const std::string& path) {
  const bool is_cpu = NameOfLibrary(path) == "libengine_cpu_ops";
  if (is_cpu && !__builtin_cpu_supports("avx512bf16")) return false;
  return std::ranges::any_of(Plugin(path).option_specs(), [](const OptionSpec& spec) {
    return spec.scope.view().empty() && spec.name.view() == "precision" &&
           spec.choices.view().find("bf16") != std::string_view::npos;
  });
}

LoadedOps Load(const std::string& path, const Settings& settings) {
  OptionValues::Overrides options = {{"threads", std::to_string(settings.threads)},
                                     {"tune", settings.tune ? "time" : "off"},
                                     {"tune_file", ""}};
  if (settings.activation == DType::kBFloat16) options["precision"] = "bf16";
  return LoadedOps::Load(Plugin(path), options);
}

Fed::Fed(const std::string& path, const OpSample& of, const Settings& settings)
    : sample(of),
      ops(Load(path, settings)),
      op(Must(ops.Make(sample))),
      formula(ReferenceOf(sample, Plugin(path).option_specs())) {
  Feed(sample.samples());
}

void Fed::Feed(int64_t samples) {
  static const std::set<std::string> of_positive = {"log",        "sqrt",  "pow",
                                                    "reciprocal", "power", "divide"};
  Domain domain{.positive = of_positive.contains(sample.op)};
  if (sample.op == "embedding") domain.end = std::stoll(sample.attributes.at("vocabulary"));
  if (sample.op == "softmax_cross_entropy") {
    domain.smallest = sample.attributes.contains("ignore_index") ? 0 : -1;
    domain.end = sample.inputs[0].shape[-1];
  }
  // Weights are not negative.
  if (op.signature.is_loss != 0) domain.positive = sample.inputs.size() > 2;
  problem = MakeProblem(sample, domain, op, samples, kSeed);
  if (sample.op != "where") return;
  for (double& condition : problem.inputs[0].values) condition = std::max(condition, 0.0);
}

RunResult Fed::Run(const RunOptions& options) {
  RunResult result = RunOp(ops.device(), op, problem, options);
  EXPECT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_THAT(result.overruns, ::testing::IsEmpty());
  return result;
}

void ExpectRefused(const std::string& path, const Settings& settings, const BadInputs& bad) {
  const LoadedOps ops = Load(path, settings);
  for (const auto& [text, sentence] : bad) {
    const OpSample sample = Sample(text);
    if (!HasOp(path, sample.op)) continue;
    const Status status = ops.Make(sample).status();
    EXPECT_EQ(status.code(), StatusCode::kConfig) << text;
    EXPECT_THAT(status.message(), ::testing::AllOf(::testing::StartsWith(sample.op + ": "),
                                                   ::testing::HasSubstr(sentence)));
  }
}

void ExpectNear(const std::vector<float>& got, const Values& want, double relative,
                const std::string& what, double absolute) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0;
  for (double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), want[i], relative * largest + absolute)
        << what << ", element " << i;
  }
}

// The types of bfloat16 hold few values: of equal ones, which an op takes as the largest must not
// depend on the step, so the first one is made the largest. Not where equal ones are to share.
Expected::Expected(const Fed& fed, double step) : outputs_(fed.formula(fed.problem.inputs)) {
  const Problem& problem = fed.problem;
  constexpr int kDirections = 2;
  const Values dy = problem.AllGradients();
  std::vector<Tensor> inputs = problem.inputs;
  const auto is_bfloat16 = [](const Tensor& t) { return t.spec.dtype == DType::kBFloat16; };
  if (std::ranges::any_of(inputs, is_bfloat16) ||
      std::ranges::any_of(problem.output_gradients, is_bfloat16)) {
    relative_ = 0x1p-7, absolute_ = 0x1p-12, step = 1e-10;
    static const std::set<std::string> sharing = {"maximum", "minimum", "where",
                                                  "mean_absolute_error"};
    const bool moves = is_bfloat16(inputs[0]) && !sharing.contains(fed.sample.op);
    for (size_t j = 0; j < inputs[0].values.size() && moves; ++j) {
      inputs[0].values[j] -= 1e-9 * static_cast<double>(j);
    }
  }
  std::mt19937 random(kSeed);
  for (size_t i = 0; i < kDirections * inputs.size(); ++i) {
    const size_t input = i / kDirections;
    if (!fed.op.differentiable(input)) continue;
    Values& values = inputs[input].values;
    const Values at = values;
    Slope slope{input, Values(values.size()), 0};
    for (double& part : slope.direction) part = 2.0 * (random() % 2) - 1;
    for (const double side : {step, -step}) {
      for (size_t j = 0; j < at.size(); ++j) values[j] = at[j] + side * slope.direction[j];
      const Values y = fed.formula(inputs);
      for (size_t j = 0; j < y.size(); ++j) slope.value += y[j] * dy[j] / (2 * side);
    }
    values = at;
    slopes_.push_back(std::move(slope));
  }
}

void Expected::Check(const RunResult& result, uint32_t accumulate) const {
  ExpectNear(result.AllOutputs(), outputs_, relative_, "output", absolute_);
  for (const Slope& slope : slopes_) {
    const std::vector<float>& gradient = result.gradients[slope.input];
    double got = 0, largest = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double added = gradient[i];
      const double part = added - ((accumulate >> slope.input & 1) != 0 ? Before(i) : 0.0f);
      got += slope.direction[i] * part;
      largest = std::max({largest, std::abs(part), std::abs(added)});
    }
    const double spread = 3 * std::sqrt(static_cast<double>(gradient.size()));
    EXPECT_NEAR(got, slope.value, spread * (relative_ * largest + absolute_))
        << "gradient of input " << slope.input;
  }
}

}  // namespace engine::test
