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

constexpr uint64_t kLastStep = 3;  // that ends too early

// Calls `then` in that step, as late as hooks and updates let it.
class Interruption {
 public:
  std::function<void()> then;

 protected:
  ~Interruption() = default;
  void Come(uint64_t step) const {
    if (step == kLastStep && then) then();
  }
};

class InterruptedHook final : public PassiveHook, public Interruption {
 public:
  InterruptedHook() : PassiveHook({.stage = HookStage::kReduced, .scope = HookScope::kGlobal}) {}
  Status BeginStep(uint64_t step) noexcept override {
    step_ = step;
    return {};
  }
  Status Apply(const GradientView&) noexcept override {
    Come(step_);
    return {};
  }

 private:
  uint64_t step_ = 0;
};

class InterruptedSgd final : public OptimizerBase, public Interruption {
 public:
  OptimizerTraits traits() const noexcept override { return FakeSgd().traits(); }
  Status Update(const UpdateCall& call) noexcept override {
    Come(call.step);
    return FakeSgd().Update(call);
  }
};

class RankMemoryTest : public ::testing::Test {
 protected:
  void Make(Rig& rig, Hooks hooks) {
    rig.options.keep_states = [&](uint64_t step) { return memory_.Keep(*rig.executor, step); };
    ASSERT_THAT(rig.Make(ChainModel(8, 2), std::make_unique<RandomScheduler>(),
                         std::make_unique<FakeCommunicator>(), std::move(hooks)),
                IsOk());
  }
  static Status Step(Rig& rig, uint64_t step) {
    return rig.Step(ChainBatch(2, 8, step, 0).Step(step)).status();
  }
  static void Abort(Rig& rig) {
    rig.executor->Abort(Status::Error(StatusCode::kPeerLost, "rank 1 is lost"));
  }
  // Of the first hook.
  static std::vector<uint8_t> Saved(const Rig& rig) {
    std::vector<uint8_t> bytes;
    const auto take = [](void* to, const uint8_t* data, uint64_t size) {
      static_cast<std::vector<uint8_t>*>(to)->assign(data, data + size);
    };
    EXPECT_THAT(Query<SavedState>(*rig.plugins.hooks[0])->SaveState(take, &bytes), IsOk());
    return bytes;
  }
  std::vector<uint8_t> SavedInMemory(const Rig& rig) {
    const auto states = memory_.Saved(*rig.executor);
    const TensorView view = states.tensors.at(0).view;
    const auto* const bytes = static_cast<const uint8_t*>(view.data);
    return {bytes, bytes + view.size_bytes()};
  }
  static std::vector<float> Tensors(const Rig& rig) {
    const float* const state = rig.executor->wire()->state(0);
    return {state, state + rig.executor->memory().layout().trainable_count};
  }

  checkpoint::RankMemory memory_;
};

TEST_F(RankMemoryTest, AStepThatIsMadeTwiceIsDecidedAboutOnce) {
  for (const bool updates : {false, true}) {  // whether they have begun
    SCOPED_TRACE(updates);
    memory_ = {};
    Rig rig;
    MemoryHost host;
    auto hook = std::make_unique<InterruptedHook>();
    auto sgd = std::make_unique<InterruptedSgd>();
    (updates ? sgd->then : hook->then) = [&] { Abort(rig); };
    rig.plugins.optimizer = std::move(sgd);
    const plugin::PluginChoice scaler =
        plugins::LossScalerOf({.first = 64, .growth_interval = 100});
    Make(rig, HookList(Must(plugin::Create<GradientHook>(scaler, host)), std::move(hook)));
    for (uint64_t step = 1; step < kLastStep; ++step) ASSERT_THAT(Step(rig, step), IsOk());
    const std::vector<uint8_t> before = Saved(rig);
    EXPECT_THAT(Step(rig, kLastStep), FailsWith(StatusCode::kPeerLost));
    const std::vector<uint8_t> after = Saved(rig);
    EXPECT_NE(after, before) << "nothing was decided";

    const int64_t salvaged = ValueOf(rig.executor->Salvage());
    EXPECT_EQ(salvaged, static_cast<int64_t>(kLastStep) - (updates ? 0 : 1));
    ASSERT_THAT(memory_.ReturnTo(*rig.executor, salvaged), IsOk());
    EXPECT_EQ(SavedInMemory(rig), updates ? after : before);
  }
}

// The transfer of its last bucket fails.
TEST_F(RankMemoryTest, TensorsAreThoseOfTheStepThatAllGoOnFrom) {
  const auto topk = [] {
    return HookList(CreateFrom<GradientHook>(PluginPath("topk"), {{"ratio", "0.25"}}));
  };
  Rig rig;
  Make(rig, topk());
  for (uint64_t step = 1; step < kLastStep; ++step) ASSERT_THAT(Step(rig, step), IsOk());
  const std::vector<float> before = Tensors(rig);
  const size_t of_a_step = rig.communicator->submitted.size() / (kLastStep - 1);
  rig.communicator->fail_sequence = rig.communicator->submitted.back().sequence + of_a_step;
  EXPECT_THAT(Step(rig, kLastStep), FailsWith(StatusCode::kPeerLost));
  const std::vector<float> after = Tensors(rig);
  EXPECT_NE(after, before) << "nothing was packed";
  ASSERT_EQ(ValueOf(rig.executor->Salvage()), static_cast<int64_t>(kLastStep) - 1);

  Rig again;
  Make(again, topk());
  for (const uint64_t step : {kLastStep, kLastStep - 1, kLastStep}) {  // also one after the other
    ASSERT_THAT(memory_.ReturnTo(*rig.executor, static_cast<int64_t>(step)), IsOk());
    memory_.GiveTensors(*again.executor);
    EXPECT_EQ(Tensors(again), step == kLastStep ? after : before);
  }
}

}  // namespace
}  // namespace engine::test
