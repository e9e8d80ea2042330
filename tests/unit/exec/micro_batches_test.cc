// A step in micro-batches is the step of the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 3;
constexpr int64_t kSamples = 7;

// y = x * w with a w that another layer has made.
class TiedScaleOp final : public FakeOp {
 public:
  void Declare(std::span<const TensorSpec>, OpSignature* signature) noexcept override {
    signature->differentiable_inputs = signature->accumulates = 3;
    signature->backward_reads_inputs = UINT32_MAX;
  }
  Status Forward(const OpCall& call) noexcept override { return scale_.Forward(call); }
  Status Backward(const OpCall& call) noexcept override { return scale_.Backward(call); }

 private:
  ScaleOp scale_{true};
};

Result<std::unique_ptr<Op>> MakeOp(const std::string& name,
                                   const std::vector<plugin::OwnedOption>& attributes) {
  if (name == "tied_scale") return std::unique_ptr<Op>(new TiedScaleOp);
  return FakeOps()(name, attributes);
}

// Residual blocks; a parameter with three uses, one of which is twice in one call; one that is
// frozen, and one that is used by two layers.
graph::Graph Tied(int64_t max_samples, const char* op = "scale") {
  Net net(MakeOp, max_samples, {kWidth});
  ModelValue h = net.Apply("stem", "scale", {net.Apply("noise", "noise", {Net::kX})});
  const ModelValue stem = net.Parameter("stem.weight");
  const ModelValue f = net.Apply("a.scale", op, {h});
  h = net.Apply("a.add", "add", {h, f});
  h = net.Apply("a.tied", "tied_scale", {h, stem});
  h = net.Apply("b.add", "add", {h, net.Apply("b.frozen", "scale_slow", {h})});
  h = net.Apply("b.twice", "add", {h, h});
  h = net.Apply("b.tied", "tied_scale", {h, stem});
  net.Apply("dead", "scale", {net.Apply("dead.noise", "noise", {h})});
  return net.Finish(h, {"b.frozen"});
}

// The same samples in every step, for a rate with which the numbers stay small.
StepBatch Data(int64_t samples) {
  StepBatch batch{.samples = samples, .first_sample = 5, .rate = 0.002f};
  for (int i = 0; i < kSamples * kWidth; ++i) {
    batch.input.push_back(static_cast<float>(i % 5 - 2));
    batch.target.push_back(i % 3);
  }
  return batch;
}

struct Outcome {
  Status status;
  std::vector<float> parameters;
  std::vector<float> statistics;  // of all steps
  std::vector<std::string> tasks;
  size_t arena_bytes = 0;
};

struct Options {
  int64_t micro_batches = 1;
  float loss_scale = 1;
  uint64_t seed = 0;   // of the scheduler
  bool sends = false;  // as one rank of several
  std::vector<int64_t> samples = {kSamples, kSamples, 2, kSamples, 0, 5};
  const char* op = "scale";
  std::vector<float> rate_scale;  // of the first parameters
};

class KeepsCalls final : public Optimizer {
 public:
  OptimizerTraits traits() const noexcept override { return FakeSgd().traits(); }
  Status Update(const UpdateCall& call) noexcept override {
    calls.push_back(call);
    return FakeSgd().Update(call);
  }
  std::vector<UpdateCall> calls;
};

Outcome Train(const Options& options, KeepsCalls* calls = nullptr) {
  Outcome outcome;
  Rig rig;
  auto optimizer = std::make_unique<KeepsCalls>();
  KeepsCalls* const updates = optimizer.get();
  rig.plugins.optimizer = std::move(optimizer);
  rig.ops = MakeOp;
  rig.options.micro_batches = options.micro_batches;
  rig.options.loss_scale = options.loss_scale;
  rig.options.sends_alone = options.sends;
  const int64_t at_once = (kSamples + options.micro_batches - 1) / options.micro_batches;
  graph::Graph graph = Tied(at_once, options.op);
  for (size_t p = 0; p < options.rate_scale.size(); ++p) {
    graph.parameters[p].learning_rate_scale = options.rate_scale[p];
    graph.parameters[p].weight_decay_scale = options.rate_scale[p] / 2;
  }
  outcome.status = rig.Make(std::move(graph), options.seed,
                            std::chrono::microseconds(options.seed == 0 ? 0 : 50));
  if (!outcome.status.ok()) return outcome;
  exec::Executor& executor = *rig.executor;
  outcome.arena_bytes = executor.memory().plan().arena_bytes;
  for (const exec::Task& task : executor.tasks().tasks) outcome.tasks.push_back(task.name);
  uint64_t step = 0;
  for (const int64_t samples : options.samples) {
    if (!outcome.status.ok()) return outcome;
    const auto result = executor.Step(Data(samples).Step(++step));
    outcome.status = result.status();
    if (!result.ok()) return outcome;
    for (const float number : {result->statistics.loss_sum, result->statistics.count}) {
      outcome.statistics.push_back(number);
    }
  }
  outcome.status = executor.Flush();
  outcome.parameters = rig.Parameters();
  if (calls != nullptr) calls->calls = updates->calls;
  return outcome;
}

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-5 * std::max(1.0f, std::abs(expected[i]))) << i;
  }
}

TEST(MicroBatchesTest, AnyNumberOfThemGivesTheSameStep) {
  const Outcome whole = Train({});
  ASSERT_THAT(whole.status, IsOk());
  for (const float number : whole.parameters) ASSERT_TRUE(std::isfinite(number));
  for (const int64_t micro_batches : {2, 3, 4, 7, 9}) {
    SCOPED_TRACE(micro_batches);
    const Outcome parts = Train({.micro_batches = micro_batches});
    ASSERT_THAT(parts.status, IsOk());
    ExpectNear(parts.statistics, whole.statistics);
    ExpectNear(parts.parameters, whole.parameters);
    EXPECT_EQ(parts.tasks.size(), whole.tasks.size() + 1);
    EXPECT_LT(parts.arena_bytes, whole.arena_bytes);
  }
}

TEST(MicroBatchesTest, AnyLegalOrderGivesTheBitsOfTheSequentialOne) {
  const Outcome expected = Train({.micro_batches = 3});
  ASSERT_THAT(expected.status, IsOk());
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome run = Train({.micro_batches = 3, .seed = seed, .sends = seed % 2 == 0});
    ASSERT_THAT(run.status, IsOk());
    ASSERT_EQ(run.parameters, expected.parameters) << "seed " << seed;
    ASSERT_EQ(run.statistics, expected.statistics) << "seed " << seed;
  }
}

TEST(MicroBatchesTest, ATaskBetweenForwardAndBackwardComputesTheRest) {
  for (const bool sends : {false, true}) {
    const Outcome run = Train({.micro_batches = 3, .sends = sends, .samples = {kSamples}});
    ASSERT_THAT(run.status, IsOk());
    auto at = std::find(run.tasks.begin(), run.tasks.end(), "micro-batches 2 to 3");
    ASSERT_NE(at, run.tasks.end());
    EXPECT_EQ(at[-1], "forward loss");
    if (sends) {
      EXPECT_EQ(*++at, "transfer statistics");
    }
    EXPECT_EQ(at[1], "backward loss");
  }
}

TEST(MicroBatchesTest, AnOpThatCannotAddToTheGradientOfAParameterIsRefused) {
  const Outcome run = Train({.micro_batches = 2, .op = "scale_slow"});
  EXPECT_THAT(run.status, FailsWith(StatusCode::kConfig,
                                    AllOf(HasSubstr("train.micro_batches"), HasSubstr("scale_slow"),
                                          HasSubstr("'a.scale.weight'"))));
  EXPECT_TRUE(Train({.op = "scale_slow"}).status.ok());
}

// With rank 0 as the only one, and a share that no part of is empty.
TEST(LossScaleTest, APowerOfTwoChangesNoBitAndScalesWhatIsSent) {
  KeepsCalls plain, scaled;
  const Outcome expected = Train({}, &plain);
  for (const float scale : {1024.0f, 0.125f}) {
    const Outcome run = Train({.loss_scale = scale}, &scaled);
    ASSERT_THAT(run.status, IsOk());
    EXPECT_EQ(run.parameters, expected.parameters);
    EXPECT_EQ(run.statistics, expected.statistics);
    ASSERT_EQ(scaled.calls.size(), plain.calls.size());
    for (size_t i = 0; i < plain.calls.size(); ++i) {
      EXPECT_EQ(scaled.calls[i].gradient_scale * scale, plain.calls[i].gradient_scale);
    }
  }
  const Outcome both = Train({.micro_batches = 2, .loss_scale = 256});
  ExpectNear(both.parameters, expected.parameters);
}

TEST(ParameterScaleTest, RatesAndDecaysReachTheOptimizer) {
  KeepsCalls plain, scaled;
  ASSERT_TRUE(Train({.samples = {kSamples}}, &plain).status.ok());
  // stem.weight and a.scale.weight; the frozen and the dead one are never updated.
  ASSERT_TRUE(Train({.samples = {kSamples}, .rate_scale = {0.5f, 3}}, &scaled).status.ok());
  ASSERT_EQ(plain.calls.size(), 2u);
  ASSERT_EQ(scaled.calls.size(), 2u);
  std::vector<float> factors, decays;
  for (size_t i = 0; i < plain.calls.size(); ++i) {
    factors.push_back(scaled.calls[i].learning_rate / plain.calls[i].learning_rate);
    decays.push_back(scaled.calls[i].weight_decay_scale);
  }
  EXPECT_THAT(factors, ::testing::UnorderedElementsAre(0.5f, 3));
  EXPECT_THAT(decays, ::testing::UnorderedElementsAre(0.25f, 1.5f));
}

}  // namespace
}  // namespace engine::test
