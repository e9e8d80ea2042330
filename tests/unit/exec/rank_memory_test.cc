// A step that ends at any place, as it does where another rank is lost: what all begin again with.
#include <gtest/gtest.h>

#include "app/checkpoint/rank_states.h"
#include "app/plugins/loss_scaler.h"
#include "core/plugin/create_object.h"
#include "engine/ext/saved_state.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

constexpr int64_t kLastStep = 3;  // that ends too early

class InterruptedHook final : public PassiveHook {
 public:
  InterruptedHook() : PassiveHook({.stage = HookStage::kReduced, .scope = HookScope::kGlobal}) {}
  Status Apply(const GradientView&) noexcept override {
    if (interrupted) interrupted->Abort(Status::Error(StatusCode::kPeerLost, "rank 1 is lost"));
    return {};
  }
  exec::Executor* interrupted = nullptr;
};

class RankMemoryTest : public ::testing::Test {
 protected:
  // That has made the steps before the last one.
  void Make(Rig& rig, Hooks hooks) {
    rig.options.keep_states = [&](uint64_t step) { return memory_.Keep(*rig.executor, step); };
    ASSERT_THAT(rig.Make(ChainModel(8, 2), std::make_unique<RandomScheduler>(),
                         std::make_unique<FakeCommunicator>(), std::move(hooks)),
                IsOk());
    for (uint64_t step = 1; step < kLastStep; ++step) ASSERT_THAT(Step(rig, step), IsOk());
  }
  static Status Step(Rig& rig, uint64_t step) {
    return rig.Step(ChainBatch(2, 8, step, 0).Step(step)).status();
  }
  // What the first hook remembers.
  static std::vector<uint8_t> Saved(const Rig& rig) {
    std::vector<uint8_t> bytes;
    const auto take = [](void* to, const uint8_t* data, uint64_t size) {
      static_cast<std::vector<uint8_t>*>(to)->assign(data, data + size);
    };
    EXPECT_THAT(Query<SavedState>(*rig.plugins.hooks[0])->SaveState(take, &bytes), IsOk());
    return bytes;
  }
  static std::vector<float> Tensors(const Rig& rig) {
    const float* const state = rig.executor->wire()->state(0);
    return {state, state + rig.executor->memory().layout().trainable_count};
  }

  checkpoint::RankMemory memory_;
};

// Between the decision and the updates, and behind them.
TEST_F(RankMemoryTest, AStepThatIsMadeTwiceIsDecidedAboutOnce) {
  for (const bool between : {true, false}) {
    SCOPED_TRACE(between);
    memory_ = {};
    Rig rig;
    MemoryHost host;
    auto hook = std::make_unique<InterruptedHook>();
    InterruptedHook& interrupts = *hook;
    const plugin::PluginChoice scaler =
        plugins::LossScalerOf({.first = 64, .growth_interval = 100});
    Make(rig, HookList(Must(plugin::Create<GradientHook>(scaler, host)), std::move(hook)));
    const std::vector<uint8_t> before = Saved(rig);
    if (between) interrupts.interrupted = rig.executor.get();
    EXPECT_EQ(Step(rig, kLastStep).ok(), !between);
    const std::vector<uint8_t> after = Saved(rig);
    EXPECT_NE(after, before) << "nothing was decided";

    const int64_t salvaged = ValueOf(rig.executor->Salvage());
    EXPECT_EQ(salvaged, kLastStep - (between ? 1 : 0));
    ASSERT_THAT(memory_.ReturnTo(*rig.executor, salvaged), IsOk());
    const TensorView saved = memory_.Saved(*rig.executor).tensors.at(0).view;
    const auto* const bytes = static_cast<const uint8_t*>(saved.data);
    EXPECT_EQ(std::vector(bytes, bytes + saved.size_bytes()), between ? before : after);
  }
}

// The transfer of its last bucket fails.
TEST_F(RankMemoryTest, TensorsAreThoseOfTheStepThatAllGoOnFrom) {
  const auto topk = [] {
    return HookList(CreateFrom<GradientHook>(PluginPath("topk"), {{"ratio", "0.25"}}));
  };
  Rig again, rig;
  Make(again, topk());
  Make(rig, topk());
  const std::vector<float> before = Tensors(rig);
  const size_t of_a_step = rig.communicator->submitted.size() / (kLastStep - 1);
  rig.communicator->fail_sequence = rig.communicator->submitted.back().sequence + of_a_step;
  EXPECT_THAT(Step(rig, kLastStep), FailsWith(StatusCode::kPeerLost));
  const std::vector<float> after = Tensors(rig);
  EXPECT_NE(after, before) << "nothing was packed";
  ASSERT_EQ(ValueOf(rig.executor->Salvage()), kLastStep - 1);
  for (const int64_t step : {kLastStep, kLastStep - 1, kLastStep}) {  // also one after the other
    ASSERT_THAT(memory_.ReturnTo(*rig.executor, step), IsOk());
    memory_.GiveTensors(*again.executor);
    EXPECT_EQ(Tensors(again), step == kLastStep ? after : before);
  }
}

}  // namespace
}  // namespace engine::test
