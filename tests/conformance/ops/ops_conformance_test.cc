// What every op of every op plugin must do: one test per property, case and library. To judge
// another library: ENGINE_CONFORMANCE_PLUGINS=/path/libengine_x.so. A case whose op the library
// does not have is not registered for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <thread>

#include "tests/conformance/ops/op_rig.h"
#include "tests/support/replica_threads.h"

namespace engine::test {
namespace {

using ::testing::IsEmpty;

constexpr uint64_t kSeed = 20240229;

// A case of a library in one precision.
struct Param {
  std::string path;
  OpCase op_case;
  DType activation = DType::kFloat32;
};

void PrintTo(const Param& param, std::ostream* out) {
  *out << param.op_case.name << " of " << param.path << " in " << Name(param.activation);
}

// Those of one library: each in float32, then in bfloat16, if there is that.
void AddParams(const std::string& path, const PluginUnderTest& plugin, std::vector<Param>* params) {
  for (const OpCase& op_case : OpCases()) {
    if (std::ranges::count(plugin.ops(), op_case.op) == 0) continue;
    params->push_back({path, op_case});
    if (!HasBFloat16(plugin)) continue;
    params->push_back({path, InBFloat16(op_case, false), DType::kBFloat16});
    params->back().op_case.name += "_bf16";
    if (!TakesFloat32(op_case)) continue;
    params->push_back({path, InBFloat16(op_case, true), DType::kBFloat16});
    params->back().op_case.name += "_bf16_of_float32";
  }
}

std::vector<Param> Params() {
  std::vector<Param> params;
  for (const std::string& path : PluginPaths({"cpu_ops"})) {
    AddParams(path, Must(PluginUnderTest::Load(path)), &params);
  }
  return params;
}

// Rounding to float32, and to bfloat16 where results, and what is between two steps of an op, are
// that: beside the largest value, as they come out of sums of terms as large, and beside the
// inputs, which are about 1.
struct Tolerance {
  double relative = 2e-5, absolute = 1e-6;

  static Tolerance Of(DType activation) {
    return activation == DType::kBFloat16 ? Tolerance{0x1p-7, 0x1p-12} : Tolerance{};
  }
};

void ExpectSame(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.outputs, b.outputs);
  EXPECT_EQ(a.gradients, b.gradients);
}

class OpConformance : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override { Use(1); }

  void Use(int threads, bool tune = false) {
    ops_.emplace(Load(threads, tune));
    made_.emplace(MakeOp(*ops_, op_case()));
  }

  static LoadedOps Load(int threads, bool tune = false) {
    return LoadedOps::Load(GetParam().path,
                           {.threads = threads, .activation = GetParam().activation, .tune = tune});
  }

  const OpCase& op_case() const { return GetParam().op_case; }
  const OpSignature& signature() const { return made_->signature; }
  // Activations are what the run has; gradients of parameters, which accumulate adds, are float32.
  DType OutputType() const {
    if (signature().is_loss != 0) return DType::kFloat32;
    return op_case().op == "accumulate" ? op_case().inputs[0].dtype : GetParam().activation;
  }
  bool batched() const { return op_case().inputs[0].batched != 0; }
  int64_t full_batch() const { return op_case().inputs[0].shape[0]; }

  Problem NewProblem(int64_t samples) const {
    return MakeProblem(op_case(), signature(), samples, kSeed + static_cast<uint64_t>(samples));
  }
  Problem NewProblem() const { return NewProblem(full_batch()); }

  RunResult Run(const Problem& problem, const RunOptions& options = {}) {
    return RunChecked(*ops_, *made_, op_case(), problem, options);
  }

  // Bit i: whether input i has a gradient that the caller wants.
  bool Differentiable(size_t input) const {
    return (signature().differentiable_inputs >> input & 1) != 0;
  }

  void ExpectMatchesFormula(const RunResult& result, const Problem& problem, uint32_t accumulate) {
    ExpectNearEnough(result.AllOutputs(), op_case().reference.forward(problem.inputs), "output");
    std::vector<Values> want = op_case().reference.backward(problem.inputs, problem.AllGradients());
    for (size_t i = 0; i < want.size(); ++i) {
      if (!Differentiable(i)) continue;
      for (size_t j = 0; (accumulate >> i & 1) != 0 && j < want[i].size(); ++j) {
        want[i][j] += static_cast<double>(Before(j));
      }
      ExpectNearEnough(result.gradients[i], want[i], "gradient of input " + std::to_string(i));
    }
  }

  static void ExpectNearEnough(const std::vector<float>& got, const Values& want,
                               const std::string& what) {
    const Tolerance tolerance = Tolerance::Of(GetParam().activation);
    ExpectNear(got, want, tolerance.relative, what, tolerance.absolute);
  }

  std::optional<LoadedOps> ops_;
  std::optional<MadeOp> made_;
};

TEST_P(OpConformance, SignatureFitsTheContract) {
  ASSERT_GE(signature().output_count, 1);
  ASSERT_LE(signature().output_count, kMaxOpOutputs);
  for (int32_t i = 0; i < signature().output_count; ++i) {
    const TensorSpec& output = signature().outputs[i];
    EXPECT_EQ(output.batched != 0, batched() && signature().is_loss == 0);
    EXPECT_EQ(output.dtype, OutputType()) << "output " << i;
  }
  const auto inputs = static_cast<int32_t>(op_case().inputs.size()) + signature().parameter_count;
  const uint32_t all = (1u << inputs) - 1;
  EXPECT_EQ(signature().differentiable_inputs & ~all, 0u);
  EXPECT_EQ(signature().accumulates & ~signature().differentiable_inputs, 0u);
  EXPECT_EQ(signature().passes_gradient & ~signature().differentiable_inputs, 0u);
  EXPECT_EQ(signature().equal_gradients & ~signature().differentiable_inputs, 0u);
  std::set<std::string> names;
  for (int32_t i = 0; i < signature().parameter_count; ++i) {
    const ParameterSpec& parameter = signature().parameters[i];
    names.emplace(parameter.name.view());
    EXPECT_GT(parameter.shape.Count(), 0);
    const size_t input = op_case().inputs.size() + static_cast<size_t>(i);
    EXPECT_EQ(parameter.trained != 0, Differentiable(input)) << parameter.name.view();
    EXPECT_LE(parameter.decay, parameter.trained) << parameter.name.view();
    EXPECT_TRUE(parameter.dtype == DType::kFloat32 ||
                (parameter.dtype == GetParam().activation && parameter.trained != 0))
        << parameter.name.view();
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(signature().parameter_count));
  EXPECT_EQ(names.count(""), 0u);
}

TEST_P(OpConformance, FormulaAgreesWithFiniteDifferences) {
  const Problem problem = NewProblem();
  const Values dy = problem.AllGradients();
  const std::vector<Values> gradients = op_case().reference.backward(problem.inputs, dy);
  const auto objective = [&](const std::vector<Tensor>& inputs) {
    const Values y = op_case().reference.forward(inputs);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  constexpr size_t kProbes = 12;  // elements of each input
  constexpr double kStep = 1e-4;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!Differentiable(i)) continue;
    const size_t stride = gradients[i].size() / kProbes + 1;
    for (size_t j = 0; j < gradients[i].size(); j += stride) {
      std::vector<Tensor> inputs = problem.inputs;
      inputs[i].values[j] += kStep;
      const double above = objective(inputs);
      inputs[i].values[j] -= 2 * kStep;
      const double slope = (above - objective(inputs)) / (2 * kStep);
      EXPECT_NEAR(gradients[i][j], slope, 1e-5 * (1 + std::abs(slope)))
          << "input " << i << ", element " << j;
    }
  }
}

TEST_P(OpConformance, MatchesTheFormula) {
  const Problem problem = NewProblem();
  ExpectMatchesFormula(Run(problem), problem, 0);
}

TEST_P(OpConformance, MatchesTheFormulaWithFewerSamples) {
  for (int64_t samples = full_batch() - 1; batched() && samples > 0; samples /= 3) {
    SCOPED_TRACE(std::to_string(samples) + " samples");
    const Problem problem = NewProblem(samples);
    ExpectMatchesFormula(Run(problem), problem, 0);
  }
}

// Products are then done by what is found to be fastest at their first call.
TEST_P(OpConformance, MatchesTheFormulaWithWhatWasMeasured) {
  const auto measures = [](const OptionSpec& spec) { return spec.name.view() == "tune"; };
  const auto options = ops_->plugin.option_specs();
  if (!std::any_of(options.begin(), options.end(), measures)) return;  // as in other tests
  const Problem problem = NewProblem();
  Use(1, true);
  for (const uint32_t accumulate : {0u, signature().accumulates}) {
    const RunOptions add{.accumulate = accumulate};
    const RunResult first = Run(problem, add);
    ExpectMatchesFormula(first, problem, accumulate);
    ExpectSame(Run(problem, add), first);
  }
}

TEST_P(OpConformance, GradientsOfSomeOutputsMayBeMissing) {
  for (int32_t output = 0; signature().output_count > 1 && output < signature().output_count;
       ++output) {
    SCOPED_TRACE("without output " + std::to_string(output));
    for (const uint32_t accumulate : {0u, signature().accumulates}) {
      Problem problem = NewProblem();
      const RunOptions options{.accumulate = accumulate, .missing = 1u << output};
      const RunResult result = Run(problem, options);
      Values& gradient = problem.output_gradients[static_cast<size_t>(output)].values;
      std::fill(gradient.begin(), gradient.end(), 0.0);
      ExpectMatchesFormula(result, problem, accumulate);
    }
  }
}

TEST_P(OpConformance, AddsToGradientsThatItAccumulates) {
  const Problem problem = NewProblem();
  const RunOptions options{.accumulate = signature().accumulates};
  ExpectMatchesFormula(Run(problem, options), problem, options.accumulate);
  for (uint32_t input = 0; input < problem.inputs.size(); ++input) {
    const RunOptions one{.accumulate = signature().accumulates & 1u << input};
    ExpectMatchesFormula(Run(problem, one), problem, one.accumulate);
  }
}

TEST_P(OpConformance, NoSamplesGiveNoGradient) {
  if (!batched()) return;  // nothing of this op depends on the number of samples
  const Problem problem = NewProblem(0);
  const RunResult written = Run(problem);
  const RunResult added = Run(problem, {.accumulate = signature().accumulates});
  if (signature().is_loss != 0) {
    EXPECT_EQ(written.outputs[0], (std::vector<float>{0, 0, 0}));
  } else {
    EXPECT_THAT(written.AllOutputs(), IsEmpty());
  }
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    for (float value : written.gradients[i]) ASSERT_EQ(value, 0.0f) << "input " << i;
    for (size_t j = 0; j < added.gradients[i].size(); ++j) {
      const bool adds = (signature().accumulates >> i & 1) != 0;
      ASSERT_EQ(added.gradients[i][j], adds ? Before(j) : 0.0f) << "input " << i;
    }
  }
}

// Not to the bit: without the gradient of a weight, that of its bias may be summed in another
// order.
TEST_P(OpConformance, GradientsThatNobodyWantsAreNotNeeded) {
  const Problem problem = NewProblem();
  const RunResult all = Run(problem);
  for (size_t i = 0; i < problem.inputs.size(); ++i) {
    const RunResult one = Run(problem, {.wanted = 1u << i});
    const RunResult others = Run(problem, {.wanted = ~(1u << i)});
    for (size_t j = 0; j < problem.inputs.size(); ++j) {
      const std::string what = std::to_string(i) + ", " + std::to_string(j);
      const Values none, wanted(all.gradients[j].begin(), all.gradients[j].end());
      ExpectNearEnough(one.gradients[j], i == j ? wanted : none, what);
      ExpectNearEnough(others.gradients[j], i == j ? none : wanted, what);
    }
  }
}

TEST_P(OpConformance, BackwardReadsOnlyWhatItDeclares) {
  const Problem problem = NewProblem();
  ExpectSame(Run(problem, {.hide_undeclared = true}), Run(problem));
}

TEST_P(OpConformance, WorksInPlaceWhereItSaysSo) {
  const Problem problem = NewProblem();
  const RunResult apart = Run(problem);
  ExpectSame(Run(problem, {.in_place = true}), apart);
  const RunResult shared = Run(problem, {.share_gradient = true});
  ExpectSame(shared, apart);
  ExpectSame(Run(problem, {.gradient_in_place = true}), apart);
}

TEST_P(OpConformance, RunsAreBitwiseEqual) {
  const Problem problem = NewProblem();
  const RunResult first = Run(problem);
  const RunResult second = Run(problem);
  ExpectSame(second, first);
  EXPECT_EQ(second.parameters, first.parameters);
  Use(1);
  ExpectSame(Run(problem), first);
}

TEST_P(OpConformance, SeveralThreadsMatchTheFormulaAndRunsAreBitwiseEqual) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the OpenMP runtime is not instrumented: its barriers look like races";
#endif
  Use(3);
  const Problem problem = NewProblem();
  const RunResult first = Run(problem);
  ExpectMatchesFormula(first, problem, 0);
  ExpectSame(Run(problem), first);
}

// Without buffers nothing but outputs, gradients and saved bytes is written; with them, only
// Forward writes them, and only while it trains.
TEST_P(OpConformance, ParametersAreLeftAlone) {
  const Problem problem = NewProblem();
  const size_t data = op_case().inputs.size();
  for (const bool training : {true, false}) {
    const RunResult result = Run(problem, {.training = training});
    const size_t given =
        result.parameters.size() - static_cast<size_t>(signature().parameter_count);
    for (int32_t i = 0; i < signature().parameter_count; ++i) {
      const Values& before = problem.inputs[data + static_cast<size_t>(i)].values;
      const std::vector<float> want(before.begin(), before.end());
      const bool changes = training && signature().parameters[i].trained == 0;
      EXPECT_EQ(result.parameters[given + static_cast<size_t>(i)] != want, changes)
          << signature().parameters[i].name.view()
          << (training ? " in training" : " in evaluation");
    }
  }
}

// Values of the parts, one behind the other, or their sum.
Values Together(const std::vector<std::vector<float>>& parts, bool batched) {
  Values all;
  for (const std::vector<float>& part : parts) {
    if (batched) {
      all.insert(all.end(), part.begin(), part.end());
    } else {
      all.resize(part.size());
      for (size_t i = 0; i < part.size(); ++i) all[i] += static_cast<double>(part[i]);
    }
  }
  return all;
}

TEST_P(OpConformance, RanksTogetherEqualOneRank) {
  if (!batched() || op_case().mixes_samples) return;
  const Problem problem = NewProblem();
  const RunResult whole = Run(problem);
  const int64_t all = full_batch(), cut = all * 2 / 3;
  const std::vector<int64_t> splits[] = {{0, cut, cut, all}, {0, 0, 1, all}};
  for (const std::vector<int64_t>& cuts : splits) {
    SCOPED_TRACE(::testing::PrintToString(cuts));
    ReplicaThreads replicas(3);
    const std::vector<RunResult> parts =
        RunParts([] { return Load(1); }, op_case(), problem, cuts,
                 signature().uses_replicas != 0 ? &replicas : nullptr);
    EXPECT_EQ(replicas.gathers() > 0, signature().uses_replicas != 0);
    const auto expect = [&](const std::vector<float>& wanted, const auto& member, bool is_batched,
                            const std::string& what) {
      std::vector<std::vector<float>> values;
      for (const RunResult& part : parts) values.push_back(member(part));
      ExpectNearEnough(wanted, Together(values, is_batched), what);
    };
    for (size_t i = 0; i < whole.outputs.size(); ++i) {
      expect(
          whole.outputs[i], [i](const RunResult& part) { return part.outputs[i]; },
          signature().outputs[i].batched != 0, "output");
    }
    for (size_t i = 0; i < problem.inputs.size(); ++i) {
      expect(
          whole.gradients[i], [i](const RunResult& part) { return part.gradients[i]; },
          problem.inputs[i].spec.batched != 0, "gradient of input " + std::to_string(i));
    }
    for (size_t i = 0; i < whole.parameters.size(); ++i) {
      const std::vector<float>& after = parts[0].parameters[i];
      ExpectNearEnough(whole.parameters[i], Values(after.begin(), after.end()), "parameter");
      EXPECT_EQ(parts[1].parameters[i], after);
      EXPECT_EQ(parts[2].parameters[i], after);
    }
  }
}

TEST_P(OpConformance, InstancesOfSeveralRanksDoNotMeet) {
  const Problem problem = NewProblem();
  const RunResult alone = Run(problem);
  const auto rank = [&] {
    const LoadedOps ops = Load(1);
    MadeOp made = MakeOp(ops, op_case());
    for (int i = 0; i < 3; ++i) ExpectSame(RunOp(ops, made, op_case(), problem), alone);
  };
  std::thread other(rank);
  rank();
  other.join();
}

INSTANTIATE_TEST_SUITE_P(, OpConformance, ::testing::ValuesIn(Params()), [](const auto& test) {
  return NameOfLibrary(test.param.path) + "_" + test.param.op_case.name;
});

class OpLibraryConformance : public ::testing::TestWithParam<std::string> {};

TEST_P(OpLibraryConformance, EveryOpHasACase) {
  const LoadedOps ops = LoadedOps::Load(GetParam(), 1);
  EXPECT_EQ(ops.plugin.file().kind, PluginKind::kOps);
  for (const std::string& name : ops.plugin.ops()) {
    const auto judges = [&](const OpCase& op_case) { return op_case.op == name; };
    EXPECT_TRUE(std::any_of(OpCases().begin(), OpCases().end(), judges))
        << "no case for op " << name << ": add one to op_cases.cc";
  }
}

TEST_P(OpLibraryConformance, EveryAttributeBelongsToAnOpAndIsDocumented) {
  const LoadedOps ops = LoadedOps::Load(GetParam(), 1);
  for (const OptionSpec& spec : ops.plugin.option_specs()) {
    EXPECT_FALSE(spec.doc.view().empty()) << spec.name.view();
    const auto is_scope = [&](const std::string& name) { return name == spec.scope.view(); };
    EXPECT_TRUE(spec.scope.view().empty() ||
                std::any_of(ops.plugin.ops().begin(), ops.plugin.ops().end(), is_scope))
        << spec.scope.view() << "." << spec.name.view();
  }
}

TEST_P(OpLibraryConformance, AnOpThatItDoesNotHaveIsRefused) {
  const LoadedOps ops = LoadedOps::Load(GetParam(), 1);
  const Result<MadeOp> made = MakeOp(ops, "no_such_op", {}, {});
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(made.status().message(), ::testing::HasSubstr("no_such_op"));
}

INSTANTIATE_TEST_SUITE_P(, OpLibraryConformance, ::testing::ValuesIn(PluginPaths({"cpu_ops"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
