// What batch_norm does beside its formula: running statistics, evaluation, precision, and the batch
// of all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

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
  // With statistics that have been running.
  static Fed Running(const OpSample& sample, int64_t samples, const Settings& settings = {}) {
    Fed fed(GetParam(), sample, settings);
    fed.Feed(samples);
    std::mt19937 random(5);
    for (const size_t input : {kRunningMean, kRunningVar}) {
      for (double& value : fed.problem.inputs[input].values) value = 0.5 + (random() % 64) / 64.0;
    }
    return fed;
  }

  static std::vector<RunResult> RunRanks(const Fed& fed, const std::vector<int64_t>& cuts,
                                         ReplicaGroup* replicas) {
    auto results = conform::RunRanks(fed.sample, fed.problem, cuts, {}, replicas,
                                     [] { return Load(GetParam()); });
    for (const RunResult& result : results) EXPECT_THAT(result.overruns, ::testing::IsEmpty());
    return results;
  }
};

Values Unbiased(const Statistics& statistics) {
  Values variance = statistics.variance;
  for (double& value : variance) value *= statistics.count / (statistics.count - 1);
  return variance;
}

// The parameters of a result follow the order of inputs, without x.
const std::vector<float>& After(const RunResult& result, size_t input) {
  return result.parameters[input - 1];
}

void ExpectStays(const RunResult& result, const Problem& problem,
                 const std::vector<size_t>& inputs) {
  for (const size_t i : inputs) EXPECT_EQ(Doubles(After(result, i)), problem.inputs[i].values) << i;
}

// Within rounding.
void ExpectFollowed(const RunResult& result, const Problem& problem, size_t input,
                    const Values& batch, double momentum) {
  Values want = problem.inputs[input].values;
  for (size_t c = 0; c < want.size(); ++c) want[c] += momentum * (batch[c] - want[c]);
  ExpectNear(After(result, input), want, 1e-6, "input " + std::to_string(input));
}

TEST_P(BatchNorm, RunningStatisticsFollowTheBatch) {
  for (const char* momentum : {"0", "0.1", "0.7", "1"}) {
    for (const Shape& x : {Shape{2, 1}, Shape{5, 3, 2, 7}, Shape{40, 9, 9, 33}}) {
      Fed fed = Running(Case(x, momentum), x[0]);
      const RunResult result = fed.Run();
      const Statistics batch(fed.problem.inputs[kX]);
      const double share = std::strtod(momentum, nullptr);
      ExpectFollowed(result, fed.problem, kRunningMean, batch.mean, share);
      ExpectFollowed(result, fed.problem, kRunningVar, Unbiased(batch), share);
    }
  }
}

TEST_P(BatchNorm, EvaluationUsesRunningStatistics) {
  for (const char* sync : {"true", "false"}) {
    for (int64_t samples : {6, 1, 0}) {
      Fed fed = Running(Case(Shape{6, 3, 5, 21}, "0.1", sync), samples);
      const RunResult result = fed.Run({.training = false});
      Statistics running(fed.problem.inputs[kX]);
      running.mean = fed.problem.inputs[kRunningMean].values;
      running.variance = fed.problem.inputs[kRunningVar].values;
      ExpectNear(result.outputs[0], ReferenceNorm(fed.problem.inputs, running, kEps), 1e-6, "y");
      ExpectStays(result, fed.problem, {kRunningMean, kRunningVar});
    }
  }
}

// PyTorch refuses such a batch.
TEST_P(BatchNorm, OneValueOfAChannelHasNoVariance) {
  Fed fed = Running(Case(Shape{4, 5}, "0.25"), 1);
  ReplicaGroup replicas(2);
  std::vector<RunResult> results = RunRanks(fed, {0, 1, 1}, &replicas);
  EXPECT_EQ(results[1].parameters, results[0].parameters);
  results[1] = fed.Run();
  for (const RunResult& result : results) {  // with a second rank that has none, and alone
    EXPECT_EQ(Doubles(result.outputs[0]), fed.problem.inputs[kBias].values);
    EXPECT_EQ(result.gradients[kX], std::vector<float>(5, 0.0f));
    EXPECT_EQ(result.gradients[kWeight], std::vector<float>(5, 0.0f));
    EXPECT_EQ(Doubles(result.gradients[kBias]), fed.problem.output_gradients[0].values);
    ExpectFollowed(result, fed.problem, kRunningMean, fed.problem.inputs[kX].values, 0.25);
    ExpectStays(result, fed.problem, {kRunningVar});
  }
}

TEST_P(BatchNorm, NoSamplesLeaveRunningStatistics) {
  Fed fed = Running(Case(Shape{4, 2, 2, 5}), 0);
  ReplicaGroup replicas(2);
  std::vector<RunResult> results = RunRanks(fed, {0, 0, 0}, &replicas);
  results.push_back(fed.Run());
  for (const RunResult& result : results) {
    EXPECT_EQ(result.gradients[kWeight], std::vector<float>(5, 0.0f));
    ExpectStays(result, fed.problem, {kRunningMean, kRunningVar});
  }
}

// Values at which a sum of squares, or a float mean, would lose most digits. With momentum 1 the
// running statistics are those of the batch.
Values HardValues(const std::string& kind, const Shape& shape) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  const auto count = static_cast<size_t>(shape.Count()), channels = static_cast<size_t>(shape[-1]);
  Values x(count);
  for (size_t i = 0; i < count; ++i) {
    const double noise = normal(random);
    const double part = static_cast<double>(i / channels * channels) / static_cast<double>(count);
    x[i] = static_cast<float>(kind == "large mean"      ? 1e4 + noise
                              : kind == "huge mean"     ? -3e6 + 8 * noise
                              : kind == "outlier first" ? (i < channels ? 300 : noise)
                              : kind == "step"          ? (part < 0.5 ? 0 : 1000) + noise
                              : kind == "trend"         ? 500 * part + 0.1 * noise
                              : kind == "constant"      ? 123.456
                              : part < 0.9              ? 0  // mostly, as behind a relu
                                                        : noise);
  }
  return x;
}

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
      SCOPED_TRACE(std::string(kind) + ", " + std::to_string(threads) + " threads");
      Fed fed = Running(Case(Shape{61, 13, 17, 5}, "1"), 61, {.threads = threads});
      fed.problem.inputs[kX].values = HardValues(kind, fed.problem.inputs[kX].shape());
      const RunResult result = fed.Run();
      const Statistics batch(fed.problem.inputs[kX]);
      ExpectStatistics(result, batch);
      ExpectNear(result.outputs[0], fed.formula(fed.problem.inputs), 2e-6, "y");
      // A step that is small beside the deviations, and large beside what a mean leaves of a double.
      Expected(fed, 1e-4).Check(result);
    }
  }
}

// Ranks whose parts differ by far more than they vary.
TEST_P(BatchNorm, RanksKeepTheirPrecisionTogether) {
  Fed fed = Running(Case(Shape{40, 7, 7, 3}, "1"), 40);
  fed.problem.inputs[kX].values = HardValues("large mean", fed.problem.inputs[kX].shape());
  ReplicaGroup replicas(3);
  const std::vector<RunResult> ranks = RunRanks(fed, {0, 13, 14, 40}, &replicas);
  EXPECT_EQ(replicas.gathers(), 2) << "one in each pass";
  const Statistics batch(fed.problem.inputs[kX]);
  ExpectStatistics(ranks[1], batch);
  const Values y = fed.formula(fed.problem.inputs);
  ExpectNear(ranks[0].outputs[0],
             Values(y.begin(), y.begin() + static_cast<ptrdiff_t>(ranks[0].outputs[0].size())),
             2e-6, "y");
}

TEST_P(BatchNorm, WithoutSyncNothingIsGathered) {
  Fed fed = Running(Case(Shape{6, 2, 2, 5}, "0.1", "false"), 6);
  ReplicaGroup replicas(2, 50);
  const std::vector<RunResult> ranks = RunRanks(fed, {0, 2, 6}, &replicas);
  EXPECT_EQ(replicas.gathers(), 0);
  const Problem first = PartOf(fed.problem, 0, 2);
  ExpectNear(ranks[0].outputs[0], fed.formula(first.inputs), 1e-5, "y");
  EXPECT_NE(ranks[0].parameters, ranks[1].parameters);
}

TEST_P(BatchNorm, NotANumberStaysInItsChannel) {
  Fed fed = Running(Case(Shape{5, 2, 2, 7}, "1"), 5);
  fed.problem.inputs[kX].values[7 * 4 + 3] = NAN;
  const RunResult result = fed.Run();
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
