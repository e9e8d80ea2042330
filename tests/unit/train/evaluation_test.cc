#include "app/run/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/data/batch_loader.h"
#include "kit/dataset.h"
#include "tests/support/expect_status.h"
#include "tests/unit/train/single_rank.h"

namespace engine::test {
namespace {

using ::testing::DoubleNear;

// Held-out samples whose inputs are what the model gives, as it is a view of them.
struct Samples final : public DatasetBase, public train::BatchSource {
  std::vector<float> outputs;
  std::vector<int32_t> classes;  // these or those are the target
  std::vector<float> numbers;
  std::vector<float> weights;  // or none
  SampleTensor input, targets[2];
  int64_t count = 0;

  Samples(int64_t numbers_of_each, std::vector<float> given, std::vector<int32_t> of_classes)
      : outputs(std::move(given)),
        classes(std::move(of_classes)),
        input{.name = "x", .shape = {numbers_of_each}},
        targets{{.name = "class",
                 .shape = {},
                 .dtype = DType::kInt32,
                 .classes = std::max<int64_t>(numbers_of_each, 2)},
                {.name = kit::kSampleWeight, .shape = {}}},
        count(static_cast<int64_t>(classes.size())) {}

  DatasetInfo info() const noexcept override {
    return {.name = "samples",
            .inputs = {&input, 1},
            .targets = {targets, weights.empty() ? 1u : 2u},
            .train_samples = 1,
            .held_out_samples = count};
  }
  Status Open(uint64_t) noexcept override { return {}; }
  Status Open() override { return {}; }
  Status Fill(const FillCall& call) const noexcept override {
    const auto size = static_cast<size_t>(input.shape.Count());
    for (size_t i = 0; i < call.indices.size(); ++i) {
      const auto at = static_cast<size_t>(call.indices[i]);
      std::copy_n(&outputs[at * size], size, static_cast<float*>(call.tensors[0]) + i * size);
      if (!classes.empty()) static_cast<int32_t*>(call.tensors[1])[i] = classes[at];
      if (!numbers.empty()) static_cast<float*>(call.tensors[1])[i] = numbers[at];
      if (!weights.empty()) static_cast<float*>(call.tensors[2])[i] = weights[at];
    }
    return {};
  }
  Result<std::unique_ptr<train::BatchStream>> Batches(const train::BatchRequest& request) override {
    return data::LoadBatches(*this, request, {.shuffle = false});
  }
};

class EvaluationTest : public ::testing::Test {
 protected:
  // By so many ranks, one after the other; what rank 0 has then.
  static run::Evaluation Evaluate(Samples& samples, const std::string& loss, int32_t ranks,
                                  const run::EvaluationOptions& options = {}) {
    const auto rank =
        ValueOf(SingleRank::Make("model { net { layer { flatten {} } loss: \"" + loss +
                                 "\" } } data { synthetic {} } train { steps: 1 global_batch: 4 }\n"
                                 "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"));
    run::EvaluationOptions all = options;
    all.loss = run::LossOf(rank->config().plugins().model);
    all.by_class = true;
    std::vector<double> sums;
    std::vector<float> places;
    const auto add = [&](std::span<double> own, std::span<float> own_places) -> Status {
      sums.resize(own.size());
      places.resize(own_places.size());
      for (size_t i = 0; i < sums.size(); ++i) own[i] = sums[i] += own[i];
      for (size_t i = 0; i < places.size(); ++i) own_places[i] = places[i] += own_places[i];
      return {};
    };
    run::Evaluation last;
    for (int32_t r = ranks; r-- > 0;) {
      const train::BatchRequest request{
          .split = Split::kHeldOut, .global_batch = 3, .rank = r, .world_size = ranks};
      auto memory = ValueOf(rank->MakeEvaluation(samples.info(), request.MaxSamples()));
      last = ValueOf(run::Evaluate(*memory, samples, request, all, add));
    }
    return last;
  }

  static double Metric(const run::Evaluation& done, const std::string& name) {
    for (const train::Metric& metric : done.report.metrics) {
      if (metric.name == name) return metric.value;
    }
    return NAN;
  }
};

TEST_F(EvaluationTest, ClassesAreCountedOnAnyNumberOfRanks) {
  Samples samples(3, {3, 1, 0, 1, 2, 0, 0, 0, 1, 9, 0, 0, 5, 4, 4, 2, 2, 1, 0, 1, 0.5},
                  {0, 1, 2, -1, 1, 0, 2});
  for (const int32_t ranks : {1, 2, 4}) {
    const run::Evaluation done = Evaluate(samples, "softmax_cross_entropy", ranks);
    EXPECT_EQ(done.report.targets, 6) << "one is ignored";
    EXPECT_EQ(Metric(done, "accuracy"), 4.0 / 6);
    EXPECT_TRUE(std::isnan(Metric(done, "top5_accuracy"))) << "of three classes";
    EXPECT_THAT(done.confusion, ElementsAre(2, 0, 0, 1, 1, 0, 0, 1, 1));
    EXPECT_EQ(done.classes[1].Precision(), 0.5);
    EXPECT_EQ(done.classes[0].Recall(), 1);
  }
  EXPECT_EQ(Evaluate(samples, "softmax_cross_entropy", 2, {.max_samples = 4}).report.targets, 3);
}

TEST_F(EvaluationTest, FiveOfMoreClasses) {
  Samples samples(6, {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, {0, 1});
  EXPECT_EQ(Metric(Evaluate(samples, "softmax_cross_entropy", 1), "top5_accuracy"), 0.5);
}

TEST_F(EvaluationTest, AnOutputThatIsNoNumberIsTheLargest) {
  Samples samples(3, {NAN, NAN, NAN, 0, NAN, 1}, {2, 1});
  const run::Evaluation done = Evaluate(samples, "softmax_cross_entropy", 1, {.by_class = true});
  EXPECT_EQ(Metric(done, "accuracy"), 0.5);
  EXPECT_EQ(done.classes[0].predicted, 1);
}

// Equal scores, and weights, of which one is 0.
TEST_F(EvaluationTest, TheAreaIsThatOfAllPairs) {
  const std::vector<float> scores = {0.5, -1, 2, 0.5, 0, 3, -1};
  const std::vector<int32_t> classes = {1, 0, 1, 0, 0, 0, 1};
  Samples samples(1, scores, classes);
  samples.weights = {1, 2, 1, 1, 3, 0, 2};
  double pairs = 0, wins = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (classes[i] != 1 || classes[j] != 0) continue;
      const double both = samples.weights[i] * samples.weights[j];
      pairs += both;
      wins += both * (scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0);
    }
  }
  for (const int32_t ranks : {1, 3}) {
    const run::Evaluation done = Evaluate(samples, "binary_cross_entropy", ranks);
    EXPECT_THAT(Metric(done, "auc"), DoubleNear(wins / pairs, 1e-12));
    EXPECT_THAT(Metric(done, "accuracy"), DoubleNear((1 + 2 + 1 + 3) / 10.0, 1e-12));
  }
}

TEST_F(EvaluationTest, NumbersHaveErrors) {
  Samples samples(1, {1, 2, 3, 4}, {});
  samples.count = 4;
  samples.targets[0] = {.name = "y", .shape = {}};
  samples.numbers = {1, 4, 3, 0};
  const run::Evaluation done = Evaluate(samples, "huber", 2);
  EXPECT_EQ(Metric(done, "mae"), 1.5);
  EXPECT_EQ(Metric(done, "rmse"), std::sqrt(5.0));
  EXPECT_THAT(done.classes, IsEmpty());
}

}  // namespace
}  // namespace engine::test
