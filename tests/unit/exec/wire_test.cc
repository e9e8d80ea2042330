// Gradients that travel in another form, on several ranks and in all chains of transfers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/elements.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 80;
constexpr int64_t kSamples = 2;
constexpr uint64_t kSteps = 8;

// Takes ready tasks at random. Buckets: the first parameter cut in two where that may be, then two
// parameters together, then one by one.
class CuttingScheduler final : public LeadScheduler {
 public:
  explicit CuttingScheduler(uint64_t seed) : LeadScheduler(seed) {}
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    std::vector<BucketSpan> whole;
    for (uint32_t p = 0; p < model.parameters.size(); ++p) {
      whole.push_back({.parameter = p, .count = model.parameters[p].count});
    }
    BucketSpan begin = whole[0], rest = whole[0];
    rest.offset = model.slice_multiple;
    rest.count -= model.slice_multiple;
    if (model.gate != UpdateGate::kTensor && rest.count > 0) {
      begin.count = model.slice_multiple;
      sink.AddBucket({&begin, 1}, 0, stages);
      sink.AddBucket({&rest, 1}, 0, stages);
    } else {
      sink.AddBucket({&begin, 1}, 0, stages);
    }
    sink.AddBucket({&whole[1], 2}, 0, stages);
    for (size_t p = 3; p < whole.size(); ++p) sink.AddBucket({&whole[p], 1}, 0, stages);
    return {};
  }
};

// Rounds gradients to bfloat16, in place: before the transfer, or after it.
class RoundingHook final : public PassiveHook {
 public:
  explicit RoundingHook(HookStage stage)
      : PassiveHook({.stage = stage, .scope = HookScope::kSpan}) {}
  Status Apply(const GradientView& view) noexcept override {
    for (int64_t i = 0; i < view.count; ++i) view.data[i] = FromBFloat16(ToBFloat16(view.data[i]));
    return {};
  }
};

class FakeCast final : public WireHook {
 public:
  WireTraits wire_traits() const noexcept override {
    return {.kind = WireKind::kCast, .dtype = DType::kBFloat16};
  }
  Status Pack(const WireCall& call) noexcept override {
    auto* const wire = static_cast<uint16_t*>(call.wire);
    for (int64_t i = 0; i < call.count; ++i) wire[i] = ToBFloat16(call.gradient[i]);
    return {};
  }
  Status Unpack(const WireCall& call) noexcept override {
    const auto* const wire = static_cast<const uint16_t*>(call.wire);
    for (int64_t i = 0; i < call.count; ++i) call.gradient[i] = FromBFloat16(wire[i]);
    return {};
  }
};

// Sends everything, backwards, behind a byte that says where the span begins; its state counts.
class FakePacked final : public WireHook {
 public:
  WireTraits wire_traits() const noexcept override {
    return {.kind = WireKind::kPacked, .state_count = 1, .state_names = {{"sent"}}};
  }
  int64_t PackedBytes(int64_t count) const noexcept override { return 1 + 4 * count; }
  Status Pack(const WireCall& call) noexcept override {
    auto* const bytes = static_cast<uint8_t*>(call.wire);
    bytes[0] = static_cast<uint8_t>(call.offset + call.parameter);
    for (int64_t i = 0; i < call.count; ++i) {
      std::memcpy(bytes + 1 + 4 * i, &call.gradient[call.count - 1 - i], 4);
      call.states[0][i] += 1;
    }
    scales.push_back(*call.scale);
    return {};
  }
  Status Unpack(const WireCall& call) noexcept override {
    const auto* const bytes = static_cast<const uint8_t*>(call.wire);
    if (bytes[0] != static_cast<uint8_t>(call.offset + call.parameter)) {
      return Status::Error(StatusCode::kBadData, "another span");
    }
    for (int64_t i = 0; i < call.count; ++i) {
      float value = 0;
      std::memcpy(&value, bytes + 1 + 4 * i, 4);
      float& gradient = call.gradient[call.count - 1 - i];
      gradient = call.accumulate != 0 ? gradient + value : value;
    }
    return {};
  }
  std::vector<float> scales;  // that Pack saw
};

// Updates are half as large.
class HalvingHook final : public PassiveHook {
 public:
  HalvingHook() : PassiveHook({.scope = HookScope::kSpan}) {}
  Status Apply(const GradientView& view) noexcept override {
    *view.scale /= 2;
    return {};
  }
};

Hooks NoHooks() {
  return {};
}
// What FakeCast comes to, with float32 on the wire.
Hooks RoundTwice() {
  return HookList(std::make_unique<RoundingHook>(HookStage::kLocal),
                  std::make_unique<RoundingHook>(HookStage::kReduced));
}
Hooks Cast() {
  return HookList(std::make_unique<FakeCast>());
}
Hooks Packed() {
  return HookList(std::make_unique<FakePacked>());
}

// In a step of kSteps each rank has an order of its own, and rank 0 leads.
RankWorld World(RankWorld world) {
  world.steps = kSteps;
  world.width = kWidth;
  world.samples = kSamples;
  world.scheduler = [seed = world.seed](int rank) {
    return std::make_unique<CuttingScheduler>(seed * 10 + static_cast<uint64_t>(rank));
  };
  return world;
}

// The state of the hook that says how gradients travel, of all parameters.
std::vector<float> WireStateOf(const exec::Executor& executor) {
  std::vector<float> values;
  for (int32_t p = 0; p < 5; ++p) {
    const TensorView state = exec::ViewIn(executor.memory(), executor.wire()->state(0), p);
    values.insert(values.end(), state.f32(), state.f32() + state.count());
  }
  return values;
}

// Bytes of all transfers of gradients and parameters of one kind.
uint64_t BytesOf(const RankResult& result, TransferKind kind) {
  uint64_t bytes = 0;
  for (const exec::Task& task : result.tasks) {
    const TaskInfo& info = task.info;
    const bool bucket = info.kind == TaskKind::kTransfer && info.bucket != exec::kNoBucket;
    if (bucket && info.transfer == kind) bytes += info.size_bytes;
  }
  return bytes;
}

std::vector<std::string> WireTasks(const RankResult& result) {
  std::vector<std::string> names;
  for (const exec::Task& task : result.tasks) {
    if (task.name.find("pack ") != std::string::npos) names.push_back(task.name);
  }
  return names;
}

void ExpectSame(const std::vector<RankResult>& results, const std::vector<RankResult>& expected) {
  for (size_t r = 0; r < results.size(); ++r) {
    ASSERT_THAT(expected[r].status, IsOk());
    ASSERT_THAT(results[r].status, IsOk()) << "rank " << r;
    EXPECT_EQ(results[r].parameters, expected[0].parameters) << "rank " << r;
  }
}

struct Chains {
  const char* name;
  BucketStages stages;
  bool shard;
};
constexpr Chains kChains[] = {{"all-reduce", BucketStages::kAllReduce, false},
                              {"split", BucketStages::kReduceScatterAllGather, false},
                              {"sharded", BucketStages::kAllReduce, true}};

TEST(Wire, ACastGivesTheBitsOfRoundingBeforeAndAfterInAllChains) {
  for (const Chains& chain : kChains) {
    for (const int size : {2, 3}) {
      for (uint32_t seed = 1; seed <= 4; ++seed) {
        SCOPED_TRACE(std::string(chain.name) + ", ranks " + std::to_string(size) + ", seed " +
                     std::to_string(seed));
        RankWorld world =
            World({.size = size, .seed = seed, .shard = chain.shard, .stages = chain.stages});
        world.hooks = RoundTwice;
        const auto expected = world.Run();
        world.hooks = NoHooks;
        EXPECT_NE(world.Run()[0].parameters, expected[0].parameters) << "rounding must show";
        world.hooks = Cast;
        ExpectSame(world.Run(), expected);
      }
    }
  }
}

TEST(Wire, WhatIsPackedGivesTheSumInTheOrderOfRanks) {
  for (const BucketStages stages :
       {BucketStages::kAllReduce, BucketStages::kReduceScatterAllGather}) {
    for (const int size : {2, 3}) {
      for (const UpdateGate gate : {UpdateGate::kSpan, UpdateGate::kTensor, UpdateGate::kGlobal}) {
        SCOPED_TRACE("ranks " + std::to_string(size) + ", gate " +
                     std::to_string(static_cast<int>(gate)));
        RankWorld world = World({.size = size, .stages = stages, .gate = gate});
        const auto expected = world.Run();
        world.hooks = Packed;
        world.end = [](exec::Executor& executor, int) -> Status {
          EXPECT_THAT(WireStateOf(executor), Each(static_cast<float>(kSteps))) << "once in a step";
          return {};
        };
        ExpectSame(world.Run(), expected);
      }
    }
  }
}

// Some buckets are updated before others are packed.
TEST(Wire, PackSeesTheScaleOfItsStepWhateverHooksMakeOfIt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rig rig;
    rig.options.loss_scale = 4;
    auto packed = std::make_unique<FakePacked>();
    FakePacked& hook = *packed;
    ASSERT_THAT(rig.Make(ChainModel(kWidth, kSamples), std::make_unique<RandomScheduler>(seed),
                         std::make_unique<FakeCommunicator>(),
                         HookList(std::move(packed), std::make_unique<HalvingHook>())),
                IsOk());
    for (const int64_t samples : {2, 1, 2}) {
      hook.scales.clear();
      ASSERT_THAT(rig.Step(ChainBatch(samples, kWidth, 1, 0).Step(1)), IsOk());
      const float targets = static_cast<float>(samples * kWidth);
      EXPECT_THAT(hook.scales, ::testing::AllOf(::testing::SizeIs(5), Each(1 / (4 * targets))));
    }
  }
}

TEST(Wire, LocalHooksComeBeforeAndReducedOnesAfter) {
  RankWorld world = World({});
  world.hooks = RoundTwice;
  const auto expected = world.Run();
  // In any place of the chain.
  world.hooks = [] {
    return HookList(std::make_unique<FakePacked>(),
                    std::make_unique<RoundingHook>(HookStage::kReduced),
                    std::make_unique<RoundingHook>(HookStage::kLocal));
  };
  ExpectSame(world.Run(), expected);
}

TEST(Wire, TasksSayWhatReallyTravels) {
  for (const Chains& chain : kChains) {
    SCOPED_TRACE(chain.name);
    RankWorld world = World({.shard = chain.shard, .stages = chain.stages});
    const auto plain = world.Run()[0];
    world.hooks = Cast;
    const auto cast = world.Run()[0];
    ASSERT_THAT(plain.status, IsOk());
    ASSERT_THAT(cast.status, IsOk());
    for (const TransferKind kind : {TransferKind::kAllReduce, TransferKind::kReduceScatter}) {
      EXPECT_EQ(2 * BytesOf(cast, kind), BytesOf(plain, kind)) << Name(kind);
    }
    const uint64_t gathers = BytesOf(cast, TransferKind::kAllGather);
    EXPECT_EQ(chain.shard ? gathers : 2 * gathers, BytesOf(plain, TransferKind::kAllGather))
        << "of a sharded run these are parameters";
    EXPECT_GT(BytesOf(plain, chain.stages == BucketStages::kAllReduce && !chain.shard
                                 ? TransferKind::kAllReduce
                                 : TransferKind::kReduceScatter),
              0u);
  }
  const auto packed =
      World({.stages = BucketStages::kReduceScatterAllGather, .hooks = Packed}).Run()[0];
  ASSERT_THAT(packed.status, IsOk());
  EXPECT_EQ(BytesOf(packed, TransferKind::kReduceScatter), 0u);
  // Two ranks; spans of 32, 48, 80 + 80 and twice 80 elements, a byte more each, rounded up to 16,
  // and buckets to 64.
  EXPECT_EQ(BytesOf(packed, TransferKind::kAllGather), 2u * (192 + 256 + 2 * 336 + 32 + 2 * 384));
}

TEST(Wire, PackIsOfBackwardAndUnpackComesAfterTheTransfer) {
  const auto result =
      World({.stages = BucketStages::kReduceScatterAllGather, .hooks = Cast}).Run()[0];
  ASSERT_THAT(result.status, IsOk());
  EXPECT_THAT(
      WireTasks(result),
      ::testing::ElementsAre("hook0 pack e.bias[0..]", "hook0 pack e.bias[32..]",
                             "hook0 pack d.weight and 1 more", "hook0 pack b.weight",
                             "hook0 pack a.weight", "hook0 unpack e.bias[0..]",
                             "hook0 unpack e.bias[32..]", "hook0 unpack d.weight and 1 more",
                             "hook0 unpack b.weight", "hook0 unpack a.weight"));
  for (const exec::Task& task : result.tasks) {
    if (task.name.find("pack ") == std::string::npos) continue;
    const bool packs = task.name.find("unpack") == std::string::npos;
    EXPECT_EQ(task.info.needed_by == UINT32_MAX, packs) << task.name;
    EXPECT_NE(task.info.bucket, exec::kNoBucket);
  }
}

TEST(Wire, NothingIsPackedWithOneRankUnlessItIsMeasured) {
  RankWorld world = World({.size = 1, .hooks = Cast});
  const auto alone = world.Run()[0];
  ASSERT_THAT(alone.status, IsOk());
  EXPECT_THAT(WireTasks(alone), IsEmpty());
  world.hooks = NoHooks;
  EXPECT_EQ(world.Run()[0].parameters, alone.parameters);

  world.prepare = [](Rig& rig) { rig.options.sends_alone = true; };
  for (const auto& hooks : {Cast, Packed}) {
    world.hooks = hooks;
    EXPECT_THAT(WireTasks(world.Run()[0]), ::testing::SizeIs(10));
  }
}

// What one rank of two is told at the start.
Status Refusal(Hooks hooks, bool shard = false, uint32_t dtypes = 31) {
  Rig rig;
  rig.options = TestOptions(0, 2, 20000, "limited");
  rig.options.shard_optimizer = shard;
  auto network = std::make_unique<FakeCommunicator>(2);
  network->described.dtypes = dtypes;
  return rig.Make(ChainModel(kWidth, kSamples), std::make_unique<RandomScheduler>(),
                  std::move(network), std::move(hooks));
}

TEST(Wire, FormsThatDoNotGoWithTheRestAreRefused) {
  const uint32_t no_bfloat16 = Bit(DType::kFloat32) | Bit(DType::kUint8);
  const uint32_t no_uint8 = Bit(DType::kFloat32) | Bit(DType::kBFloat16);
  const std::pair<Status, const char*> refusals[] = {
      {Refusal(Cast(), false, no_bfloat16),
       "'hook0' sends bfloat16, which communicator 'limited' cannot"},
      {Refusal(Packed(), false, no_uint8), "'hook0' sends uint8"},
      {Refusal(Packed(), true), "'hook0' packs whole gradients, and train.shard_optimizer"},
      {Refusal(HookList(std::make_unique<FakeCast>(), std::make_unique<FakePacked>())),
       "'hook0' and 'hook1'"}};
  for (const auto& [status, message] : refusals) {
    EXPECT_THAT(status, FailsWith(StatusCode::kConfig, HasSubstr(message)));
  }
}

class Empty final : public WireHook {
 public:
  WireTraits wire_traits() const noexcept override { return {.kind = WireKind::kPacked}; }
  Status Pack(const WireCall&) noexcept override { return {}; }
  Status Unpack(const WireCall&) noexcept override { return {}; }
};

TEST(Wire, AHookThatBreaksTheContractIsNamed) {
  EXPECT_THAT(Refusal(HookList(std::make_unique<RoundingHook>(HookStage::kWire))),
              FailsWith(StatusCode::kPlugin,
                        AllOf(HasSubstr("'hook0'"), HasSubstr("engine.wire_format."))));
  EXPECT_THAT(Refusal(HookList(std::make_unique<Empty>())),
              FailsWith(StatusCode::kPlugin, HasSubstr("into 0 bytes")));
}

}  // namespace
}  // namespace engine::test
