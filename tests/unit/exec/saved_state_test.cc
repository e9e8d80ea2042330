// What plugins remember, through executor and checkpoint, on ranks that are threads: each gets its own
// back, and what a plugin answers is checked. Whole runs: tests/system/train/resume_system_test.cc.
#include "engine/ext/saved_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>

#include "app/checkpoint/rank_states.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/exec/async_world.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

class Memory : public SavedStateBase {
 public:
  uint32_t state_version() const noexcept final { return 3; }
  Status SaveState(void (*sink)(void*, const uint8_t*, uint64_t), void* context) noexcept final {
    for (int i = 0; i < calls; ++i) sink(context, bytes.data(), bytes.size() + more);
    return answer;
  }
  Status LoadState(std::span<const uint8_t> state) noexcept final {
    bytes.assign(state.begin(), state.end());
    return answer;
  }
  std::vector<uint8_t> bytes;
  uint64_t more = 0;  // than there are, it says
  int calls = 1;
  Status answer;

 protected:
  ~Memory() = default;
};

template <typename Fake>
class With final : public Fake, public Memory {
 public:
  using Fake::Fake;
  void* Query(std::string_view id) noexcept override {
    return id == SavedState::kId ? static_cast<SavedState*>(this) : Fake::Query(id);
  }
};

// Of communicator, scheduler and hook.
std::vector<Memory*> MemoriesOf(const exec::Executor& executor) {
  const plugin::PluginSet& plugins = executor.plugins();
  std::vector<Memory*> memories;
  for (Object* const object : std::initializer_list<Object*>{
           plugins.communicator.get(), plugins.scheduler.get(), plugins.hooks[0].get()}) {
    auto* const saved = Query<SavedState>(*object);
    memories.push_back(static_cast<Memory*>(saved));
  }
  return memories;
}

// Nothing; a few; more than travels at once. On each rank as many as no other has.
std::vector<uint8_t> Expected(int rank, size_t plugin) {
  const size_t sizes[] = {0, 5, (size_t{9} << 20) + 1};
  std::vector<uint8_t> bytes(sizes[plugin] + (plugin > 0 ? static_cast<size_t>(rank) : 0));
  std::iota(bytes.begin(), bytes.end(), static_cast<uint8_t>(50 * rank + 7));
  return bytes;
}

Hooks RememberingHook() {
  return HookList(std::make_unique<With<PassiveHook>>(HookTraits()));
}

class SavedStateTest : public ::testing::Test {
 protected:
  Status Save(const exec::Executor& executor) const {
    ENGINE_ASSIGN_OR_RETURN(const auto kept, checkpoint::CollectRankStates(executor, path_));
    const RankInfo& rank = executor.options().rank;
    if (rank.rank > 0) return {};
    ENGINE_ASSIGN_OR_RETURN(
        const auto content,
        checkpoint::ContentOf(executor, {.config = "seed: 1", .world_size = rank.world_size}, kept,
                              /*copies=*/true));
    return checkpoint::WriteCheckpoint(path_, content);
  }
  // And what the log is told.
  Status Load(exec::Executor& executor) {
    ENGINE_ASSIGN_OR_RETURN(const auto opened, checkpoint::OpenCheckpoint(path_));
    const RankInfo& rank = executor.options().rank;
    if (rank.rank == 0) warnings_ = checkpoint::StateWarnings(opened, executor, rank.world_size);
    return checkpoint::LoadCheckpoint(opened, executor, rank);
  }

  const test::TempFolder folder_;
  const std::string path_ = folder_ / "model";
  std::vector<std::string> warnings_;
};

TEST_F(SavedStateTest, EachRankGetsItsOwnAndAnotherNumberOfRanksThatOfRankZero) {
  RankWorld world{.size = 3, .steps = 2, .hooks = RememberingHook};
  world.scheduler = [](int) { return std::make_unique<With<LeadScheduler>>(); };
  world.communicator = [](Hub& hub, int rank) {
    return std::make_unique<With<HubCommunicator>>(hub, rank);
  };
  world.end = [&](exec::Executor& executor, int rank) {
    for (size_t i = 0; i < 3; ++i) MemoriesOf(executor)[i]->bytes = Expected(rank, i);
    return Save(executor);
  };
  for (const RankResult& result : world.Run()) ASSERT_THAT(result.status, IsOk());
  world.end = nullptr;
  world.begin = [&](exec::Executor& executor, int rank) {
    const Status status = Load(executor);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(MemoriesOf(executor)[i]->bytes == Expected(world.size == 3 ? rank : 0, i))
          << "plugin " << i << " on rank " << rank << " of " << world.size;
    }
    return status;
  };
  for (world.size = 2; world.size <= 4; ++world.size) {
    for (const RankResult& result : world.Run()) EXPECT_THAT(result.status, IsOk());
    EXPECT_EQ(warnings_.size(), world.size == 3 ? 0u : 3u);
  }
  EXPECT_THAT(warnings_.back(), HasSubstr("all ranks go on with that of rank 0"));
}

TEST_F(SavedStateTest, WhatAPluginAnswersIsChecked) {
  Rig rig, other;
  other.options.hook_names = {"new", "new_wire"};
  for (Rig* const one : {&rig, &other}) {
    Hooks hooks = RememberingHook();
    hooks.push_back(std::make_unique<HalfSender>(/*on_device=*/false));
    ASSERT_THAT(one->Make(ChainModel(8, 2), std::make_unique<With<RandomScheduler>>(),
                          std::make_unique<With<FakeCommunicator>>(), std::move(hooks)),
                IsOk());
  }
  EXPECT_EQ(checkpoint::DescribeRankStates(*rig.executor),
            "hook/hook1/mean_half\nsaved/communicator/hub version 3\n"
            "saved/scheduler/test_sched version 3\nsaved/hook/hook0 version 3\n");
  ASSERT_THAT(Save(*rig.executor), IsOk());
  ASSERT_THAT(Load(*other.executor), IsOk());
  EXPECT_THAT(warnings_,
              ElementsAre("the checkpoint has no 'hook/new_wire/mean_half': it begins with zeros",
                          "the checkpoint has no 'saved/hook/new': it begins anew",
                          "this run has no use for 'hook/hook1/mean_half' of the checkpoint",
                          "this run has no use for 'saved/hook/hook0' of the checkpoint"));
  Memory& memory = *MemoriesOf(*rig.executor)[2];
  const auto refusal = [&](StatusCode code, const std::string& why) {
    return FailsWith(code, HasSubstr("hook 'hook0'" + why));
  };
  const std::string calls = ": SaveState called its sink ";
  memory.calls = 0;
  EXPECT_THAT(Save(*rig.executor), refusal(StatusCode::kPlugin, calls + "0 times"));
  memory.calls = 2;
  EXPECT_THAT(Save(*rig.executor), refusal(StatusCode::kPlugin, calls + "2 times"));
  memory.calls = 1;
  memory.more = 1;  // at no address
  EXPECT_THAT(Save(*rig.executor), refusal(StatusCode::kPlugin, calls + "1 times with 1 bytes"));
  memory.bytes.resize(1);
  memory.more = uint64_t{1} << 63;
  EXPECT_THAT(Save(*rig.executor), refusal(StatusCode::kPlugin, calls + "1 times with 922"));
  memory.answer = Status::Error(StatusCode::kBadData, "full");
  EXPECT_THAT(Save(*rig.executor), refusal(StatusCode::kBadData, ": full"));
  EXPECT_THAT(Load(*rig.executor),
              refusal(StatusCode::kBadData,
                      " cannot go on with 'saved/hook/hook0/0' of the checkpoint: full"));
}

// Of a hook that says how gradients travel: in memory of the device.
TEST_F(SavedStateTest, StatesOnAnAcceleratorAreThoseOfTheirRanks) {
  AsyncWorld world{.size = 2};
  world.hooks = {{"half_sender", {}}};
  std::vector<float> kept[2], own[2];  // by rank
  world.body = [&](const AsyncRank& self, exec::Executor& executor) -> Status {
    ENGINE_RETURN_IF_ERROR(world.RunSteps(self, executor, 3));
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    const TensorView all{executor.wire()->state(0), {executor.memory().layout().trainable_count}};
    own[self.rank].resize(static_cast<size_t>(all.count()));
    ENGINE_RETURN_IF_ERROR(executor.memory().ReadFloats(all, own[self.rank].data()));
    ENGINE_ASSIGN_OR_RETURN(const auto states, checkpoint::CollectRankStates(executor, path_));
    for (const auto& [name, view] : states.tensors) {
      std::vector<float>& of = kept[name.starts_with("hook/half_sender/mean_half/1/")];
      of.insert(of.end(), view.f32(), view.f32() + view.count());
    }
    return {};
  };
  for (const AsyncOutcome& outcome : world.Run()) EXPECT_THAT(outcome.status, IsOk());
  for (const int rank : {0, 1}) {  // whatever the order of parameters and the padding
    for (auto* const values : {&own[rank], &kept[rank]}) {
      std::erase(*values, 0.0f);
      std::ranges::sort(*values);
    }
    EXPECT_EQ(kept[rank], own[rank]) << "rank " << rank;
  }
  EXPECT_NE(own[0], own[1]);
}

}  // namespace
}  // namespace engine::test
