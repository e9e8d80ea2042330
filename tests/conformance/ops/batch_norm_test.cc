// What batch_norm does beside its formula: running statistics, evaluation, precision, and the batch
// of all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "tests/conformance/ops/op_rig.h"

namespace engine::test {
namespace {

constexpr double kEps = 1e-3;
constexpr size_t kX = 0, kWeight = 1, kBias = 2, kRunningMean = 3, kRunningVar = 4;

OpSample Case(const Shape& x, const char* momentum = "0.1", const char* sync = "true") {
  return {"batch_norm",
          {{"momentum", momentum}, {"epsilon", "1e-3"}, {"sync", sync}},
          {{x, DType::kFloat32, 1}}};
}

Values Doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

class BatchNorm : public ::testing::TestWithParam<std::string> {
 protected:
  RunResult Run(const OpSample& sample, const Problem& problem, const RunOptions& options = {},
                int threads = 1) const {
    const LoadedOps ops = Load(GetParam(), {.threads = threads});
    MadeOp made = Must(ops.Make(sample));
    return RunChecked(ops, made, problem, options);
  }

  // With statistics that have been running.
  Problem Running(const OpSample& sample, int64_t samples) const {
    Problem problem = NewProblem(sample, Must(Load(GetParam()).Make(sample)), samples);
    std::mt19937 random(5);
    for (const size_t input : {kRunningMean, kRunningVar}) {
      for (double& value : problem.inputs[input].values) value = 0.5 + (random() % 64) / 64.0;
    }
    return problem;
  }

  std::vector<RunResult> RunRanks(const OpSample& sample, const Problem& problem,
                                  const std::vector<int64_t>& cuts, ReplicaGroup* replicas) const {
    std::vector<RunResult> results(cuts.size() - 1);
    std::vector<std::jthread> ranks;
    for (size_t rank = 0; rank < results.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        const LoadedOps ops = Load(GetParam());
        MadeOp made = Must(ops.Make(sample));
        const RunOptions options{.replicas =
                                     replicas->rank(static_cast<int32_t>(rank), ops.device())};
        results[rank] = RunChecked(ops, made, PartOf(problem, cuts[rank], cuts[rank + 1]), options);
      });
    }
    ranks.clear();  // waits
    return results;
  }
};

Statistics OfChannels(const Tensor& x) {
  return Statistics(x, Statistics::Of::kChannels);
}

// What running statistics become.
Values Followed(const Values& before, const Values& batch, double momentum) {
  Values after = before;
  for (size_t c = 0; c < after.size(); ++c) {
    after[c] = (1 - momentum) * before[c] + momentum * batch[c];
  }
  return after;
}

Values Unbiased(const Statistics& statistics) {
  Values variance = statistics.variance;
  for (double& value : variance) value *= statistics.count / (statistics.count - 1);
  return variance;
}

// The parameters of a result follow the order of inputs, without x.
const std::vector<float>& After(const RunResult& result, size_t input) {
  return result.parameters[input - 1];
}

TEST_P(BatchNorm, RunningStatisticsFollowTheBatch) {
  for (const char* momentum : {"0", "0.1", "0.7", "1"}) {
    for (const Shape& x : {Shape{2, 1}, Shape{5, 3, 2, 7}, Shape{40, 9, 9, 33}}) {
      const OpSample sample = Case(x, momentum);
      const Problem problem = Running(sample, x[0]);
      const RunResult result = Run(sample, problem);
      const Statistics batch = OfChannels(problem.inputs[kX]);
      const double share = std::strtod(momentum, nullptr);
      ExpectNear(After(result, kRunningMean),
                 Followed(problem.inputs[kRunningMean].values, batch.mean, share), 1e-6, "mean");
      ExpectNear(After(result, kRunningVar),
                 Followed(problem.inputs[kRunningVar].values, Unbiased(batch), share), 1e-6,
                 "variance");
    }
  }
}

TEST_P(BatchNorm, EvaluationUsesRunningStatistics) {
  for (const char* sync : {"true", "false"}) {
    const OpSample sample = Case(Shape{6, 3, 5, 21}, "0.1", sync);
    for (int64_t samples : {6, 1, 0}) {
      const Problem problem = Running(sample, samples);
      const RunResult result = Run(sample, problem, {.training = false});
      Statistics running = OfChannels(problem.inputs[kX]);
      running.mean = problem.inputs[kRunningMean].values;
      running.variance = problem.inputs[kRunningVar].values;
      ExpectNear(result.outputs[0], ReferenceNorm(problem.inputs, running, kEps), 1e-6, "y");
      EXPECT_EQ(Doubles(After(result, kRunningMean)), problem.inputs[kRunningMean].values);
      EXPECT_EQ(Doubles(After(result, kRunningVar)), problem.inputs[kRunningVar].values);
    }
  }
}

// PyTorch refuses such a batch.
TEST_P(BatchNorm, OneValueOfAChannelHasNoVariance) {
  const OpSample sample = Case(Shape{4, 5}, "0.25");
  const Problem problem = Running(sample, 1);
  ReplicaGroup replicas(2);
  std::vector<RunResult> results = RunRanks(sample, problem, {0, 1, 1}, &replicas);
  EXPECT_EQ(results[1].parameters, results[0].parameters);
  results[1] = Run(sample, problem);
  for (const RunResult& result : results) {  // with a second rank that has none, and alone
    EXPECT_EQ(Doubles(result.outputs[0]), problem.inputs[kBias].values);
    EXPECT_EQ(result.gradients[kX], std::vector<float>(5, 0.0f));
    EXPECT_EQ(result.gradients[kWeight], std::vector<float>(5, 0.0f));
    EXPECT_EQ(Doubles(result.gradients[kBias]), problem.output_gradients[0].values);
    ExpectNear(After(result, kRunningMean),
               Followed(problem.inputs[kRunningMean].values, problem.inputs[kX].values, 0.25), 1e-6,
               "mean");
    EXPECT_EQ(Doubles(After(result, kRunningVar)), problem.inputs[kRunningVar].values);
  }
}

TEST_P(BatchNorm, NoSamplesLeaveRunningStatistics) {
  const OpSample sample = Case(Shape{4, 2, 2, 5});
  const Problem problem = Running(sample, 0);
  ReplicaGroup replicas(2);
  std::vector<RunResult> results = RunRanks(sample, problem, {0, 0, 0}, &replicas);
  results.push_back(Run(sample, problem));
  for (const RunResult& result : results) {
    EXPECT_EQ(result.gradients[kWeight], std::vector<float>(5, 0.0f));
    EXPECT_EQ(Doubles(After(result, kRunningMean)), problem.inputs[kRunningMean].values);
    EXPECT_EQ(Doubles(After(result, kRunningVar)), problem.inputs[kRunningVar].values);
  }
}

// Values at which a sum of squares, or a float mean, would lose most digits. With momentum 1 the
// running statistics are those of the batch.
class HardValues {
 public:
  explicit HardValues(const char* kind) : kind_(kind) {}

  Values Make(const Shape& shape) {
    Values x(static_cast<size_t>(shape.Count()));
    const auto channels = static_cast<size_t>(shape[-1]);
    for (size_t i = 0; i < x.size(); ++i) {
      const double part =
          static_cast<double>(i / channels * channels) / static_cast<double>(x.size());
      x[i] = static_cast<float>(Value(part, i < channels));
    }
    return x;
  }

 private:
  double Value(double part, bool first_row) {
    const double noise = normal_(random_);
    if (kind_ == "large mean") return 1e4 + noise;
    if (kind_ == "huge mean") return -3e6 + 8 * noise;
    if (kind_ == "outlier first") return first_row ? 300 : noise;
    if (kind_ == "step") return (part < 0.5 ? 0 : 1000) + noise;
    if (kind_ == "trend") return 500 * part + 0.1 * noise;
    if (kind_ == "constant") return 123.456;
    return part < 0.9 ? 0 : noise;  // mostly zeros, as behind a relu
  }

  const std::string kind_;
  std::mt19937_64 random_{5};
  std::normal_distribution<double> normal_;
};

// The mean to float rounding and to a ten-millionth of the deviation, the variance to a millionth.
void ExpectStatistics(const RunResult& result, const Statistics& batch) {
  const Values variance = Unbiased(batch);
  for (size_t c = 0; c < variance.size(); ++c) {
    const double deviation = std::sqrt(variance[c]);
    ASSERT_NEAR(After(result, kRunningMean)[c], batch.mean[c],
                6e-8 * std::abs(batch.mean[c]) + 1e-7 * deviation);
    ASSERT_NEAR(After(result, kRunningVar)[c], variance[c], 1e-6 * variance[c] + 1e-12);
  }
}

TEST_P(BatchNorm, KeepsItsPrecision) {
  for (const char* kind :
       {"large mean", "huge mean", "outlier first", "step", "trend", "constant", "sparse"}) {
    for (const int threads : {1, 3}) {
#ifdef __SANITIZE_THREAD__
      if (threads > 1) continue;  // the OpenMP runtime is not instrumented
#endif
      SCOPED_TRACE(std::string(kind) + ", " + std::to_string(threads) + " threads");
      const OpSample sample = Case(Shape{61, 13, 17, 5}, "1");
      Problem problem = Running(sample, 61);
      problem.inputs[kX].values = HardValues(kind).Make(problem.inputs[kX].shape());
      const RunResult result = Run(sample, problem, {}, threads);
      const Statistics batch = OfChannels(problem.inputs[kX]);
      ExpectStatistics(result, batch);
      ExpectNear(result.outputs[0], FormulaOf(GetParam(), sample)(problem.inputs), 2e-6, "y");
      // A step that is small beside the deviations, and large beside what a mean leaves of a double.
      Expected(FormulaOf(GetParam(), sample), Must(Load(GetParam()).Make(sample)), problem, 1e-4)
          .Check(result);
    }
  }
}

// Ranks whose parts differ by far more than they vary.
TEST_P(BatchNorm, RanksKeepTheirPrecisionTogether) {
  const OpSample sample = Case(Shape{40, 7, 7, 3}, "1");
  Problem problem = Running(sample, 40);
  problem.inputs[kX].values = HardValues("large mean").Make(problem.inputs[kX].shape());
  ReplicaGroup replicas(3);
  const std::vector<RunResult> ranks = RunRanks(sample, problem, {0, 13, 14, 40}, &replicas);
  EXPECT_EQ(replicas.gathers(), 2) << "one in each pass";
  const Statistics batch = OfChannels(problem.inputs[kX]);
  ExpectStatistics(ranks[1], batch);
  const Values y = FormulaOf(GetParam(), sample)(problem.inputs);
  ExpectNear(ranks[0].outputs[0],
             Values(y.begin(), y.begin() + static_cast<ptrdiff_t>(ranks[0].outputs[0].size())),
             2e-6, "y");
}

TEST_P(BatchNorm, WithoutSyncNothingIsGathered) {
  const OpSample sample = Case(Shape{6, 2, 2, 5}, "0.1", "false");
  const Problem problem = Running(sample, 6);
  ReplicaGroup replicas(2, 50);
  const std::vector<RunResult> ranks = RunRanks(sample, problem, {0, 2, 6}, &replicas);
  EXPECT_EQ(replicas.gathers(), 0);
  const Problem first = PartOf(problem, 0, 2);
  ExpectNear(ranks[0].outputs[0], FormulaOf(GetParam(), sample)(first.inputs), 1e-5, "y");
  EXPECT_NE(ranks[0].parameters, ranks[1].parameters);
}

TEST_P(BatchNorm, NotANumberStaysInItsChannel) {
  const OpSample sample = Case(Shape{5, 2, 2, 7}, "1");
  Problem problem = Running(sample, 5);
  problem.inputs[kX].values[7 * 4 + 3] = NAN;
  const RunResult result = Run(sample, problem);
  for (size_t i = 0; i < result.outputs[0].size(); ++i) {
    ASSERT_EQ(std::isnan(result.outputs[0][i]), i % 7 == 3) << i;
  }
  for (size_t c = 0; c < 7; ++c) {
    EXPECT_EQ(std::isnan(After(result, kRunningMean)[c]), c == 3);
    EXPECT_EQ(std::isnan(After(result, kRunningVar)[c]), c == 3);
  }
}

INSTANTIATE_TEST_SUITE_P(, BatchNorm, ::testing::ValuesIn(PluginPaths({"cpu_ops"})),
                         kNameOfLibrary);

}  // namespace
}  // namespace engine::test
