// Losses that a configuration chooses, and what several of them, class weights and sample weights make
// of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kit/loss_model.h"
#include "tests/support/expect_status.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/train/values_on_device.h"

namespace engine::test {
namespace {

constexpr int64_t kScored = 4, kFeatures = 3;
constexpr SampleTensor kInput{.name = "x", .shape = {kFeatures}};
constexpr SampleTensor kClass{.name = "class", .shape = {}, .dtype = DType::kInt32, .classes = 3};
constexpr SampleTensor kBit{.name = "bit", .shape = {}, .dtype = DType::kInt32, .classes = 2};
constexpr SampleTensor kNumbers{.name = "numbers", .shape = {2}};
constexpr SampleTensor kWeight{.name = kit::kSampleWeight, .shape = {}};

// A linear layer for each target.
class Heads final : public ModelBase, public InitialValuesBase {
 public:
  explicit Heads(const Options& options) : criterion_(options) {}
  Status Build(ModelBuilder& builder) const noexcept override {
    std::vector<ModelValue> heads;
    for (size_t i = 0; i < kit::Criterion::Targets(builder.data()).size(); ++i) {
      ENGINE_ASSIGN_OR_RETURN(const int64_t units, criterion_.OutputUnits(builder, i));
      ENGINE_ASSIGN_OR_RETURN(heads.emplace_back(),
                              kit::Apply(builder, "", "linear", {0}, {kit::Int("units", units)}));
      ENGINE_RETURN_IF_ERROR(builder.Output("head" + std::to_string(i), heads.back()));
    }
    return criterion_.Add(builder, heads);
  }
  void* Query(std::string_view id) noexcept override { return Offer<InitialValues>(id, this); }
  uint32_t Has(std::string_view name) const noexcept override { return criterion_.Has(name); }
  Status Read(std::string_view, std::span<float> values) const noexcept override {
    criterion_.Read(values);
    return {};
  }

 private:
  const kit::Criterion criterion_;
};

class Losses : public ::testing::Test {
 protected:
  void SetUp() override {
    rank_ = ValueOf(SingleRank::Make(
        "model { mlp {} } data { synthetic {} } train { steps: 1 global_batch: 4 }\n"
        "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"cpu_ops\"]\n"));
    for (size_t i = 0; i < x_.size(); ++i) x_[i] = std::sin(static_cast<float>(i + 1));
  }

  Result<graph::Graph> Build(const std::vector<SampleTensor>& targets) {
    const std::vector<OptionValue> values = {
        {.name = "loss", .type = OptionType::kOp, .string = loss_},
        {.name = "criterion", .type = OptionType::kLayers, .layers = criteria_},
        {.name = "class_weights", .type = OptionType::kString, .string = class_weights_}};
    const Heads model{Options(values)};
    return model::BuildModel(
        model, {.inputs = {&kInput, 1}, .targets = targets, .max_samples = kScored}, rank_->ops());
  }

  // Of `targets`, whose data is `data`: first the statistics of a step, then the parameters after it.
  std::pair<exec::StepStatistics, std::vector<float>> Step(const std::vector<SampleTensor>& targets,
                                                           const std::vector<const void*>& data) {
    auto executor = ValueOf(exec::Executor::Create(ValueOf(Build(targets)), rank_->plugins(),
                                                   rank_->ops(), nullptr, {.seed = 3}));
    exec::ModelMemory& memory = executor->memory();
    EXPECT_THAT(memory.InitializeParameters(), IsOk());
    const std::vector<const void*> others(data.begin() + 1, data.end());
    const auto statistics = StepAndFlush(*executor, {.input = x_.data(),
                                                     .target = data[0],
                                                     .others = others,
                                                     .samples = kScored,
                                                     .learning_rate = 0.5f});
    return {ValueOf(statistics),
            {memory.parameters(), memory.parameters() + memory.layout().trainable_count}};
  }

  std::unique_ptr<SingleRank> rank_;
  std::string loss_ = "softmax_cross_entropy", class_weights_;
  std::vector<LayerSpec> criteria_;
  std::array<float, kScored * kFeatures> x_;
  const std::array<int32_t, kScored> class_{0, 2, 1, 2};
  const std::array<float, kScored * 2> numbers_{1, -1, 0.5, 2, 0, 0, -3, 1};
};

TEST_F(Losses, AModelGivesWhatItsLossTakes) {
  const auto units = [this](const SampleTensor& target) {
    const graph::Graph graph = ValueOf(Build({target}));
    return graph.values[graph.logits].spec.shape[-1];
  };
  EXPECT_EQ(units(kClass), 3);
  loss_ = "binary_cross_entropy";
  EXPECT_EQ(units(kBit), 1);
  for (const char* loss : {"mean_squared_error", "mean_absolute_error", "huber"}) {
    loss_ = loss;
    EXPECT_EQ(units(kNumbers), 2) << loss;
  }
}

TEST_F(Losses, WhatDoesNotFitTheTargetsIsRefused) {
  const auto refused = [this](const std::vector<SampleTensor>& targets, const char* why) {
    EXPECT_THAT(Build(targets).status(), FailsWith(StatusCode::kConfig, HasSubstr(why)));
  };
  refused({kNumbers}, "the targets are numbers, not classes");
  loss_ = "mean_squared_error";
  refused({kClass}, "input 1 is int32");
  criteria_ = {{.op = "huber"}, {.op = "huber"}};
  refused({kNumbers}, "1 predictions, a sample has 1 targets, and there are 2 losses");
  criteria_.clear();
  loss_ = "softmax_cross_entropy";
  for (const char* weights : {"1,2", "1 2 3 4", "1,-1,1", "1,2,x", "1,2,inf"}) {
    class_weights_ = weights;
    refused({kClass}, "is no list of a number from 0 on for each of the 3 classes");
  }
}

TEST_F(Losses, ClassWeightsAreAConstant) {
  class_weights_ = "1, 0.5,4";
  const graph::Graph graph = ValueOf(Build({kClass}));
  EXPECT_TRUE(graph.parameters.back().constant());
  EXPECT_THAT(graph.parameters.back().values, ElementsAre(1, 0.5, 4));
  EXPECT_EQ(Step({kClass}, {class_.data()}).first.count, 1 + 4 + 0.5f + 4);
}

// The sum of weight times mean, whatever the number of targets of each.
TEST_F(Losses, SeveralAddUpAsMeans) {
  const auto mean = [this](const SampleTensor& target, const void* data, const char* loss) {
    loss_ = loss;
    const exec::StepStatistics is = Step({target}, {data}).first;
    return is.loss_sum / is.count;
  };
  const float first = mean(kClass, class_.data(), "softmax_cross_entropy");
  criteria_ = {{.op = "softmax_cross_entropy"}};
  // The second head has other initial values than one that is alone: those of the whole are read.
  const std::array weight = {kit::Float("weight", 0.25)};
  criteria_.push_back({.op = "mean_squared_error", .attributes = weight});
  auto executor = ValueOf(exec::Executor::Create(
      ValueOf(Build({kClass, kNumbers})), rank_->plugins(), rank_->ops(), nullptr, {.seed = 3}));
  exec::ModelMemory& memory = executor->memory();
  ASSERT_THAT(memory.InitializeParameters(), IsOk());
  const std::array<const void*, 1> others = {numbers_.data()};
  ASSERT_THAT(memory.SetBatch(x_.data(), class_.data(), kScored, others), IsOk());
  ASSERT_THAT(memory.RunForward(), IsOk());
  const std::vector<float> predicted = OutputOf(memory, "head1");
  double squares = 0;
  for (size_t i = 0; i < predicted.size(); ++i) squares += std::pow(predicted[i] - numbers_[i], 2);
  const exec::StepStatistics all = StatisticsIn(memory);
  EXPECT_EQ(all.count, kScored);
  EXPECT_NEAR(all.loss_sum / all.count, first + 0.25 * squares / numbers_.size(), 1e-5);
}

// Gradients are divided by the sum of weights, which may be less than one.
TEST_F(Losses, SampleWeightsAreRelative) {
  const std::array<float, kScored> large = {1, 2, 0, 5};
  std::array<float, kScored> small = large, none = {};
  for (float& weight : small) weight /= 1024;
  const auto with = [this](const std::array<float, kScored>& weights) {
    return Step({kClass, kWeight}, {class_.data(), weights.data()});
  };
  const auto [statistics, expected] = with(large);
  EXPECT_EQ(statistics.count, 8);
  const auto [scaled, same] = with(small);
  EXPECT_EQ(scaled.count, 8.0f / 1024);
  EXPECT_EQ(same, expected);
  for (const float value : with(none).second) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace engine::test
