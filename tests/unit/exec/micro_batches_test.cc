// A step in micro-batches is the step of the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 3;
constexpr int64_t kSamples = 7;

// y = x * w with a w that another layer has made.
class TiedScaleOp final : public ScaleOp {
 public:
  void Declare(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ScaleOp::Declare(inputs, signature);
    signature->parameter_count = 0;
  }
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

struct Options {
  int64_t micro_batches = 1;
  float loss_scale = 1;
  uint64_t seed = 0;   // of the scheduler
  bool sends = false;  // as one rank of several
  std::vector<int64_t> samples = {kSamples, kSamples, 2, kSamples, 0, 5};
  const char* op = "scale";
  std::vector<float> rate_scale;  // of the first parameters
};

class KeepsCalls final : public OptimizerBase {
 public:
  OptimizerTraits traits() const noexcept override { return FakeSgd().traits(); }
  Status Update(const UpdateCall& call) noexcept override {
    calls.push_back(call);
    return FakeSgd().Update(call);
  }
  std::vector<UpdateCall> calls;
};

// What else a test looks at.
struct Seen {
  std::vector<UpdateCall> calls;
  size_t arena_bytes = 0;
};

RankResult Train(const Options& options, Seen* seen = nullptr) {
  RankWorld world{.size = 1, .steps = options.samples.size()};
  world.model = [&] {
    graph::Graph graph =
        Tied((kSamples + options.micro_batches - 1) / options.micro_batches, options.op);
    for (size_t p = 0; p < options.rate_scale.size(); ++p) {
      graph.parameters[p].learning_rate_scale = options.rate_scale[p];
      graph.parameters[p].weight_decay_scale = options.rate_scale[p] / 2;
    }
    return graph;
  };
  world.scheduler = [&](int) { return std::make_unique<RandomScheduler>(options.seed); };
  world.communicator = [&](Hub&, int) {
    return std::make_unique<FakeCommunicator>(1, std::chrono::microseconds(options.seed ? 50 : 0));
  };
  KeepsCalls* updates = nullptr;
  world.prepare = [&](Rig& rig) {
    auto optimizer = std::make_unique<KeepsCalls>();
    updates = optimizer.get();
    rig.plugins.optimizer = std::move(optimizer);
    rig.ops = MakeOp;
    rig.options.micro_batches = options.micro_batches;
    rig.options.loss_scale = options.loss_scale;
    rig.options.sends_alone = options.sends;
  };
  world.batch = [&](int, uint64_t step) { return Data(options.samples[step - 1]); };
  world.end = [&](exec::Executor& executor, int) -> Status {
    if (seen != nullptr) *seen = {updates->calls, executor.memory().plan().arena_bytes};
    return {};
  };
  return world.Run()[0];
}

TEST(MicroBatchesTest, AnyNumberOfThemGivesTheSameStep) {
  Seen of_whole, of_parts;
  const RankResult whole = Train({}, &of_whole);
  ASSERT_THAT(whole.status, IsOk());
  for (const float number : whole.parameters) ASSERT_TRUE(std::isfinite(number));
  for (const int64_t micro_batches : {2, 3, 4, 7, 9}) {
    SCOPED_TRACE(micro_batches);
    const RankResult parts = Train({.micro_batches = micro_batches}, &of_parts);
    ASSERT_THAT(parts.status, IsOk());
    ExpectNear(parts.losses, whole.losses, 1e-5);
    ExpectNear(parts.parameters, whole.parameters, 1e-5);
    EXPECT_EQ(parts.tasks.size(), whole.tasks.size() + 1);
    EXPECT_LT(of_parts.arena_bytes, of_whole.arena_bytes);
  }
}

TEST(MicroBatchesTest, AnyLegalOrderGivesTheBitsOfTheSequentialOne) {
  const RankResult expected = Train({.micro_batches = 3});
  ASSERT_THAT(expected.status, IsOk());
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const RankResult run = Train({.micro_batches = 3, .seed = seed, .sends = seed % 2 == 0});
    ASSERT_THAT(run.status, IsOk());
    ASSERT_EQ(run.parameters, expected.parameters);
    ASSERT_EQ(run.losses, expected.losses);
  }
}

TEST(MicroBatchesTest, ATaskBetweenForwardAndBackwardComputesTheRest) {
  for (const bool sends : {false, true}) {
    const RankResult run = Train({.micro_batches = 3, .sends = sends, .samples = {kSamples}});
    ASSERT_THAT(run.status, IsOk());
    auto at = std::ranges::find(run.tasks, "micro-batches 2 to 3", &exec::Task::name);
    ASSERT_NE(at, run.tasks.end());
    EXPECT_EQ(at[-1].name, "forward loss");
    if (sends) {
      EXPECT_EQ((++at)->name, "transfer statistics");
    }
    EXPECT_EQ(at[1].name, "backward loss");
  }
}

TEST(MicroBatchesTest, AnOpThatCannotAddToTheGradientOfAParameterIsRefused) {
  const RankResult run = Train({.micro_batches = 2, .op = "scale_slow"});
  EXPECT_THAT(run.status, FailsWith(StatusCode::kConfig,
                                    AllOf(HasSubstr("train.micro_batches"), HasSubstr("scale_slow"),
                                          HasSubstr("'a.scale.weight'"))));
  EXPECT_TRUE(Train({.op = "scale_slow"}).status.ok());
}

// With rank 0 as the only one, and a share that no part of is empty.
TEST(LossScaleTest, APowerOfTwoChangesNoBitAndScalesWhatIsSent) {
  Seen plain, scaled;
  const RankResult expected = Train({}, &plain);
  for (const float scale : {1024.0f, 0.125f}) {
    const RankResult run = Train({.loss_scale = scale}, &scaled);
    ASSERT_THAT(run.status, IsOk());
    EXPECT_EQ(run.parameters, expected.parameters);
    EXPECT_EQ(run.losses, expected.losses);
    ASSERT_EQ(scaled.calls.size(), plain.calls.size());
    for (size_t i = 0; i < plain.calls.size(); ++i) {
      EXPECT_EQ(scaled.calls[i].gradient_scale * scale, plain.calls[i].gradient_scale);
    }
  }
  const RankResult both = Train({.micro_batches = 2, .loss_scale = 256});
  ExpectNear(both.parameters, expected.parameters, 1e-5);
}

TEST(ParameterScaleTest, RatesAndDecaysReachTheOptimizer) {
  Seen plain, scaled;
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
