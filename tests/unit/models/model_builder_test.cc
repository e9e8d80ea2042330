// What a model can build beyond one input, one target and one loss, and what it may not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "engine/ext/initial_values.h"
#include "kit/model.h"
#include "tests/support/expect_status.h"
#include "tests/unit/train/single_rank.h"
#include "tests/unit/train/values_on_device.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 6, kSamples = 4;
constexpr std::array<int64_t, 2> kClasses = {4, 3};

class FunctionModel : public ModelBase {
 public:
  using Body = std::function<Status(ModelBuilder&)>;
  explicit FunctionModel(Body body) : body_(std::move(body)) {}
  Status Build(ModelBuilder& builder) const noexcept override { return body_(builder); }

 private:
  const Body body_;
};

// Both inputs are added; a table of the model's own and a layer predict the two targets.
Status BuildTwoOfEach(ModelBuilder& builder) {
  ENGINE_ASSIGN_OR_RETURN(const ModelValue x, kit::Apply(builder, "", "add", {0, 1}));
  const ParameterSpec wanted{
      .shape = {kClasses[0], kWidth}, .initializer = Initializer::kUniform, .scale = 0.5f};
  ModelValue table = 0;
  ENGINE_RETURN_IF_ERROR(builder.Parameter("table", &wanted, &table));
  ENGINE_ASSIGN_OR_RETURN(const ModelValue first,
                          kit::Apply(builder, "first", "tied_linear", {x, table}));
  ENGINE_ASSIGN_OR_RETURN(const ModelValue second, kit::Apply(builder, "second", "linear", {x},
                                                              {kit::Int("units", kClasses[1])}));
  ENGINE_RETURN_IF_ERROR(builder.Output("first", first));
  ENGINE_RETURN_IF_ERROR(builder.Output("second", second));
  if (builder.data().with_loss == 0) return {};
  for (const auto& [name, logits, target] : {std::tuple{"loss1", first, 2}, {"loss2", second, 3}}) {
    ENGINE_ASSIGN_OR_RETURN(
        const ModelValue loss,
        kit::Apply(builder, name, "softmax_cross_entropy", {logits, ModelValue{target}}));
    ENGINE_RETURN_IF_ERROR(builder.Loss(loss));
  }
  return {};
}

class ModelBuilderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto rank = ValueOf(SingleRank::Make(
        "model { mlp {} } data { synthetic {} } train { steps: 1 global_batch: 4 }\n"
        "plugins: [\"null\", \"fifo_sched\", \"sgd\", \"" +
        OpsUnderTest() + "\"]\n"));
    rank_ = std::move(rank);
    for (size_t i = 0; i < a_.size(); ++i) {
      a_[i] = std::sin(static_cast<float>(i));
      b_[i] = std::cos(static_cast<float>(3 * i));
    }
  }

  Result<graph::Graph> Build(const FunctionModel::Body& body, int64_t samples = kSamples,
                             bool with_loss = true) {
    return model::BuildModel(
        FunctionModel(body),
        {.inputs = inputs_, .targets = targets_, .max_samples = samples, .with_loss = with_loss},
        rank_->ops());
  }

  Result<std::unique_ptr<exec::Executor>> MakeExecutor(int64_t micro_batches) {
    ENGINE_ASSIGN_OR_RETURN(graph::Graph graph, Build(BuildTwoOfEach, kSamples / micro_batches));
    ENGINE_ASSIGN_OR_RETURN(
        auto executor,
        exec::Executor::Create(std::move(graph), rank_->plugins(), rank_->ops(), nullptr,
                               {.seed = 3, .micro_batches = micro_batches}));
    ENGINE_RETURN_IF_ERROR(executor->memory().InitializeParameters());
    return executor;
  }

  exec::StepInput Input(uint64_t step) const {
    return {.input = a_.data(),
            .target = arm_.data(),
            .others = others_,
            .samples = kSamples,
            .step = step,
            .learning_rate = 0.5f};
  }

  std::unique_ptr<SingleRank> rank_;
  const std::array<SampleTensor, 2> inputs_{
      {{.name = "a", .shape = {kWidth}}, {.name = "b", .shape = {kWidth}}}};
  const std::array<SampleTensor, 2> targets_{
      {{.name = "arm", .shape = {}, .dtype = DType::kInt32, .classes = kClasses[0]},
       {.name = "leg", .shape = {}, .dtype = DType::kInt32, .classes = kClasses[1]}}};
  std::array<float, kSamples * kWidth> a_, b_;
  std::array<int32_t, kSamples> arm_{0, 3, 2, 1}, leg_{2, 0, 1, 2};
  const std::array<const void*, 2> others_{b_.data(), leg_.data()};
};

// By its definition, in double precision.
double CrossEntropy(const std::vector<float>& logits, const std::array<int32_t, kSamples>& target) {
  const size_t classes = logits.size() / kSamples;
  double loss = 0;
  for (size_t i = 0; i < kSamples; ++i) {
    double sum = 0;
    for (size_t c = 0; c < classes; ++c) sum += std::exp(double{logits[i * classes + c]});
    loss += std::log(sum) - logits[i * classes + static_cast<size_t>(target[i])];
  }
  return loss;
}

TEST_F(ModelBuilderTest, SeveralInputsTargetsOutputsAndLosses) {
  auto executor = ValueOf(MakeExecutor(1));
  exec::ModelMemory& memory = executor->memory();
  const exec::StepInput batch = Input(1);
  ASSERT_TRUE(memory.SetBatch(batch.input, batch.target, batch.samples, batch.others).ok());
  ASSERT_TRUE(memory.RunForward().ok());
  EXPECT_EQ(OutputOf(memory, "first"), Floats(memory, memory.logits()));
  const double expected = CrossEntropy(OutputOf(memory, "first"), arm_) +
                          CrossEntropy(OutputOf(memory, "second"), leg_);
  const exec::StepStatistics statistics = StatisticsIn(memory);
  EXPECT_NEAR(statistics.loss_sum, expected, 1e-4);
  EXPECT_EQ(statistics.count, 2 * kSamples) << "the targets of both losses";
}

TEST_F(ModelBuilderTest, LearnsFromBothTargetsAlsoInMicroBatches) {
  const auto last_loss = [&](int64_t micro_batches) {
    auto executor = MakeExecutor(micro_batches);
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    double first = 0, loss = 0;
    for (uint64_t step = 1; step <= 150; ++step) {
      const auto statistics = StepAndFlush(**executor, Input(step));
      EXPECT_TRUE(statistics.ok()) << statistics.status().message();
      loss = statistics->loss_sum / statistics->count;
      if (step == 1) first = loss;
    }
    EXPECT_LT(loss, first / 2);
    return loss;
  };
  const double whole = last_loss(1);
  EXPECT_NEAR(last_loss(2), whole, 1e-3 * whole);
}

// Gives each parameter whose name begins so its values: 0, 1, 2, ...
class GivingModel final : public FunctionModel, public InitialValuesBase {
 public:
  GivingModel(Body body, std::string prefix)
      : FunctionModel(std::move(body)), prefix_(std::move(prefix)) {}
  void* Query(std::string_view id) noexcept override { return Offer<InitialValues>(id, this); }
  uint32_t Has(std::string_view parameter) const noexcept override {
    return parameter.starts_with(prefix_) ? 1 : 0;
  }
  Status Read(std::string_view, std::span<float> values) const noexcept override {
    std::iota(values.begin(), values.end(), 0.0f);
    return {};
  }

 private:
  const std::string prefix_;
};

TEST_F(ModelBuilderTest, AModelGivesValuesAndConstantsStay) {
  const auto with_constant = [](ModelBuilder& builder) -> Status {
    const ParameterSpec wanted{.shape = {kClasses[0], kWidth},
                               .initializer = Initializer::kConstant};
    ModelValue table = 0;
    ENGINE_RETURN_IF_ERROR(builder.Parameter("my.constant", &wanted, &table));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue x, kit::Apply(builder, "my.layer", "linear", {0},
                                                           {kit::Int("units", kWidth)}));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue y, kit::Apply(builder, "", "tied_linear", {x, table}));
    ENGINE_RETURN_IF_ERROR(builder.Output("y", y));
    ENGINE_ASSIGN_OR_RETURN(const ModelValue loss,
                            kit::Apply(builder, "", "softmax_cross_entropy", {y, ModelValue{2}}));
    return builder.Loss(loss);
  };
  const model::ModelRequest request{
      .inputs = inputs_, .targets = targets_, .max_samples = kSamples};
  EXPECT_THAT(Build(with_constant).status().message(),
              HasSubstr("no values for its constant 'my.constant'"));
  const GivingModel model(with_constant, "my.");
  auto executor =
      ValueOf(exec::Executor::Create(ValueOf(model::BuildModel(model, request, rank_->ops())),
                                     rank_->plugins(), rank_->ops(), nullptr, {.seed = 3}));
  exec::ModelMemory& memory = executor->memory();
  ASSERT_THAT(memory.InitializeParameters(), IsOk());
  std::vector<float> expected(kClasses[0] * kWidth);
  std::iota(expected.begin(), expected.end(), 0.0f);
  EXPECT_EQ(Floats(memory, memory.parameter(0)), expected);
  EXPECT_EQ(Floats(memory, memory.parameter(1)).back(), kWidth * kWidth - 1);
  exec::StepInput step = Input(1);
  step.others = std::span(others_).first(2);
  ASSERT_TRUE(StepAndFlush(*executor, step).ok());
  EXPECT_EQ(Floats(memory, memory.parameter(0)), expected) << "no update changes a constant";
  EXPECT_NE(Floats(memory, memory.parameter(1)).back(), kWidth * kWidth - 1);
}

TEST_F(ModelBuilderTest, AGraphForInferenceHasNoTargets) {
  const auto graph = ValueOf(Build(BuildTwoOfEach, kSamples, false));
  EXPECT_EQ(graph.target, graph::kNone);
  EXPECT_EQ(graph.loss, graph::kNone);
  EXPECT_EQ(graph.others, std::vector<graph::ValueId>{1});
  EXPECT_EQ(graph.outputs.size(), 2u);
}

TEST_F(ModelBuilderTest, WhatAModelMayNotDo) {
  const auto layer = [](ModelBuilder& builder) {
    return *kit::Apply(builder, "layer", "linear", {0}, {kit::Int("units", 4)});
  };
  const auto wants = [](const ParameterSpec& wanted) -> FunctionModel::Body {
    return [wanted](ModelBuilder& builder) {
      ModelValue value = 0;
      return builder.Parameter("p", &wanted, &value);
    };
  };
  const struct {
    FunctionModel::Body body;
    StatusCode code;
    const char* said;
    bool with_loss = true;
  } cases[] = {
      {[](ModelBuilder&) { return Status(); }, StatusCode::kPlugin, "has no output"},
      {[&](ModelBuilder& builder) { return builder.Output("x", layer(builder)); },
       StatusCode::kPlugin, "has no loss"},
      {[&](ModelBuilder& builder) { return builder.Loss(layer(builder)); }, StatusCode::kConfig,
       "'layer' is no loss"},
      {[](ModelBuilder& builder) { return builder.Output("x", 99); }, StatusCode::kPlugin,
       "an output that is not there"},
      {[](ModelBuilder& builder) { return builder.Output("x", 2); }, StatusCode::kPlugin,
       "not there", false},
      {[](ModelBuilder& builder) {
         ModelValue value = 0;
         return builder.Parameter("no.such", nullptr, &value);
       },
       StatusCode::kConfig, "'no.such'"},
      {[](ModelBuilder& builder) {
         const ParameterSpec wanted{.shape = {4}};
         return builder.Parameter("no.place", &wanted, nullptr);
       },
       StatusCode::kPlugin, "parameter 'no.place' that cannot be"},
      {wants({.shape = {-4, 2}}), StatusCode::kPlugin, "wants a parameter 'p' that cannot be"},
      {wants({.shape = {int64_t{1} << 40, int64_t{1} << 40}}), StatusCode::kPlugin, "cannot be"},
      {wants({.shape = {4}, .scale = NAN}), StatusCode::kPlugin, "cannot be"},
      {wants({.shape = {4}, .dtype = DType::kInt32}), StatusCode::kPlugin, "cannot be"},
      {wants({.shape = {4}, .trained = 0, .dtype = DType::kBFloat16}), StatusCode::kPlugin,
       "cannot be"},
      {[&](ModelBuilder& builder) {
         const ModelValue input = 0;
         ModelValue output = 0;
         return builder.Apply({.op = "relu", .learning_rate_scale = NAN}, {&input, 1},
                              {&output, 1});
       },
       StatusCode::kPlugin, "learning rate or weight decay is not finite"},
      // The first error stays, whatever a model makes of it.
      {[](ModelBuilder& builder) {
         (void)kit::Apply(builder, "", "liner", {0});
         return builder.Output("x", 0);
       },
       StatusCode::kConfig, "did you mean 'linear'"},
  };
  for (const auto& [body, code, said, with_loss] : cases) {
    const Status status = Build(body, kSamples, with_loss).status();
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(said));
  }
}

}  // namespace
}  // namespace engine::test
