// train.loss_scaling with cast_fp16 on ranks that are threads, against one process that trains in
// double precision with the rule of torch.cuda.amp.GradScaler. All numbers are small integers times
// powers of two, so both come to the same ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "app/plugins/loss_scaler.h"
#include "core/plugin/create_object.h"
#include "core/plugin/loss_scale.h"
#include "engine/ext/saved_state.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 4;
constexpr uint64_t kSteps = 24;
constexpr plugins::LossScaling kScaling = {
    .first = 0x1p24, .growth_factor = 4, .backoff_factor = 0.5, .growth_interval = 3};

// The loss is the sum of (x + a + b) (target + 1) over two samples.
int32_t TargetOf(int rank, uint64_t step) {
  return static_cast<int32_t>(step * step % 7) + rank;
}

struct Trained {
  std::vector<double> scales;                // of the steps that count
  double scale = kScaling.first, value = 0;  // of a and b
  uint64_t skipped = 0;
};

Trained Reference(int ranks) {
  Trained run;
  int64_t good = 0;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    double gradient = 0;
    for (int rank = 0; rank < ranks; ++rank) gradient += 2 * (TargetOf(rank, step) + 1);
    if (run.scale * gradient > 65504) {  // the largest float16
      ++run.skipped;
      run.scale *= kScaling.backoff_factor;
      good = 0;
      continue;
    }
    run.scales.push_back(run.scale);
    run.value -= 0.25 * gradient / static_cast<double>(2 * kWidth * ranks);
    if (++good < kScaling.growth_interval) continue;
    run.scale *= kScaling.growth_factor;
    good = 0;
  }
  return run;
}

// Refuses a step that is not the next one of its updates.
class CountingSgd final : public OptimizerBase {
 public:
  OptimizerTraits traits() const noexcept override { return FakeSgd().traits(); }
  Status Update(const UpdateCall& call) noexcept override {
    if (call.count == 0) return {};
    if (static_cast<float>(call.step) != call.states[0][0] + 1) {
      return Status::Error(StatusCode::kInternal, "step %llu",
                           static_cast<unsigned long long>(call.step));
    }
    gradient_scales.push_back(call.gradient_scale);
    return FakeSgd().Update(call);
  }
  std::vector<double> gradient_scales;
};

// Refuses a gradient that is not finite.
class FiniteHook final : public PassiveHook {
 public:
  FiniteHook() : PassiveHook({.stage = HookStage::kReduced, .scope = HookScope::kGlobal}) {}
  Status Observe(const GradientView& gradient) noexcept override {
    return std::isfinite(gradient.data[0])
               ? Status()
               : Status::Error(StatusCode::kInternal, "a gradient of a step that is skipped");
  }
  std::span<float> Observed() noexcept override { return {observed_, 2}; }

 private:
  float observed_[2] = {};
};

struct Variant {
  int ranks = 2;
  bool shard = false;
  int64_t micro_batches = 1;
  uint64_t order = 0;  // of tasks and transfers: a seed
};

std::vector<Trained> Train(const Variant& variant) {
  const plugin::PluginChoice choice = plugins::LossScalerOf(kScaling);
  MemoryHost host;
  RankWorld world{.size = variant.ranks, .steps = kSteps, .shard = variant.shard};
  world.hooks = [&] {
    return HookList(Must(plugin::Create<GradientHook>(choice, host)),
                    std::make_unique<FiniteHook>(),
                    CreateFrom<GradientHook>(PluginPath("cast_fp16"), {}));
  };
  world.model = [&] {
    Net net(FakeOps(), 2 / variant.micro_batches, {kWidth});
    return net.Finish(net.Apply("b", "shift", {net.Apply("a", "shift", {Net::kX})}));
  };
  world.scheduler = [&](int rank) {
    return std::make_unique<LeadScheduler>(
        variant.order == 0 ? 0 : variant.order + static_cast<uint64_t>(rank));
  };
  world.prepare = [&](Rig& rig) {
    rig.options.micro_batches = variant.micro_batches;
    rig.plugins.optimizer = std::make_unique<CountingSgd>();
  };
  world.batch = [](int rank, uint64_t step) {
    StepBatch batch = ChainBatch(2, kWidth, step, rank);
    std::ranges::fill(batch.target, TargetOf(rank, step));
    return batch;
  };
  std::vector<Trained> trained(static_cast<size_t>(variant.ranks));
  world.end = [&](exec::Executor& executor, int rank) -> Status {
    Trained& run = trained[static_cast<size_t>(rank)];
    auto* const scaler = Query<plugin::LossScale>(*executor.plugins().hooks[0]);
    run.scale = scaler->scale();
    run.skipped = scaler->skipped();
    run.value = ParametersOf(executor.memory())[0];
    auto* const base = static_cast<OptimizerBase*>(executor.plugins().optimizer.get());
    const auto& sgd = dynamic_cast<const CountingSgd&>(*base);
    const size_t steps = kSteps - run.skipped;  // each updates all spans of this rank
    const size_t spans = sgd.gradient_scales.size() / steps;
    for (size_t i = 0; i < steps && spans > 0; ++i) {  // sharded, only rank 0 has some
      run.scales.push_back(
          1 / (sgd.gradient_scales[i * spans] * static_cast<double>(2 * kWidth * variant.ranks)));
    }
    return {};
  };
  for (const RankResult& result : world.Run()) EXPECT_THAT(result.status, IsOk());
  return trained;
}

TEST(LossScalingTest, SkipsTheStepsThatGradScalerSkipsOnAllRanks) {
  const Variant variants[] = {
      {.ranks = 4},  {.micro_batches = 2}, {.shard = true, .micro_batches = 2},
      {.order = 10}, {.order = 20},        {.shard = true, .order = 30}};
  for (const Variant& variant : variants) {
    SCOPED_TRACE(std::to_string(variant.ranks) + " ranks, " + std::to_string(variant.shard) +
                 std::to_string(variant.micro_batches) + std::to_string(variant.order));
    const Trained wanted = Reference(variant.ranks);
    EXPECT_GT(wanted.skipped, 12u);
    const std::vector<Trained> trained = Train(variant);
    EXPECT_EQ(trained[0].scales, wanted.scales);
    for (const Trained& made : trained) {
      EXPECT_EQ(made.scale, wanted.scale);
      EXPECT_EQ(made.skipped, wanted.skipped);
      EXPECT_EQ(made.value, wanted.value);
    }
  }
}

TEST(LossScalingTest, RefusesWhatNoScaleCanMend) {
  MemoryHost host;
  const auto hook = Must(plugin::Create<GradientHook>(
      plugins::LossScalerOf(
          {.first = 1e-8, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 9}),
      host));
  auto* const scaler = Query<plugin::LossScale>(*hook);
  float gradient[] = {1, std::nanf("")}, scale = 1;
  Status status;
  for (uint64_t step = 1; step <= 4; ++step) {
    ASSERT_THAT(status, IsOk());
    ASSERT_THAT(hook->BeginStep(step), IsOk());
    ASSERT_THAT(hook->Observe({.data = gradient, .count = 2, .scale = &scale}), IsOk());
    status = scaler->Decide(nullptr);
    EXPECT_EQ(scaler->skipped(), step);
  }
  EXPECT_THAT(status, FailsWith(StatusCode::kConfig, HasSubstr("of step 4 are not finite")));
  const uint8_t bytes[24] = {};
  EXPECT_THAT(Query<SavedState>(*hook)->LoadState(bytes),
              FailsWith(StatusCode::kBadData, HasSubstr("no loss scale")));
}

}  // namespace
}  // namespace engine::test
