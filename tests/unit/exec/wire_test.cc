// Gradients that travel in another form, on several ranks and in all chains of transfers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/elements.h"
#include "tests/support/hub_communicator.h"
#include "tests/unit/exec/ranks.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kWidth = 80;
constexpr int64_t kSamples = 2;
constexpr uint64_t kSteps = 8;

graph::Graph Chain() {
  return ChainModel(kWidth, kSamples);
}

// Takes ready tasks at random. Buckets: the first parameter cut in two where that may be, then two
// parameters together, then one by one.
class CuttingScheduler final : public RandomScheduler {
 public:
  explicit CuttingScheduler(uint64_t seed) : RandomScheduler(seed) {}
  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kLeader}; }
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    const auto whole = [&](uint32_t p) {
      return BucketSpan{.parameter = p, .count = model.parameters[p].count};
    };
    const BucketSpan begin{.parameter = 0, .count = model.slice_multiple};
    const BucketSpan rest{
        .parameter = 0, .offset = begin.count, .count = model.parameters[0].count - begin.count};
    const bool cuts = model.gate != UpdateGate::kTensor && rest.count > 0;
    if (cuts) {
      sink.AddBucket({&begin, 1}, 0, stages);
      sink.AddBucket({&rest, 1}, 0, stages);
    } else {
      const BucketSpan first = whole(0);
      sink.AddBucket({&first, 1}, 0, stages);
    }
    const BucketSpan pair[] = {whole(1), whole(2)};
    sink.AddBucket(pair, 0, stages);
    for (uint32_t p = 3; p < model.parameters.size(); ++p) {
      const BucketSpan span = whole(p);
      sink.AddBucket({&span, 1}, 0, stages);
    }
    return {};
  }
};

// Rounds gradients to bfloat16, in place: before the transfer, or after it.
class RoundingHook final : public PassiveHook {
 public:
  explicit RoundingHook(HookStage stage) : PassiveHook({stage, HookScope::kSpan}) {}
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
  HalvingHook() : PassiveHook({HookStage::kReduced, HookScope::kSpan}) {}
  Status Apply(const GradientView& view) noexcept override {
    *view.scale /= 2;
    return {};
  }
};

using Hooks = std::vector<std::unique_ptr<GradientHook>>;

Hooks NoHooks() {
  return {};
}
template <typename... Made>
Hooks List(Made... made) {
  Hooks hooks;
  (hooks.push_back(std::move(made)), ...);
  return hooks;
}
// What FakeCast comes to, with float32 on the wire.
Hooks RoundTwice() {
  return List(std::make_unique<RoundingHook>(HookStage::kLocal),
              std::make_unique<RoundingHook>(HookStage::kReduced));
}
Hooks Cast() {
  return List(std::make_unique<FakeCast>());
}
Hooks Packed() {
  return List(std::make_unique<FakePacked>());
}

struct RankResult {
  Status status;
  std::vector<float> parameters;  // in graph order, without padding
  std::vector<TaskInfo> tasks;
  std::vector<std::string> names;
  std::vector<float> state;  // of the hook, of all parameters
};

struct World {
  int size = 2;
  BucketStages stages = BucketStages::kAllReduce;
  bool shard = false;
  UpdateGate gate = UpdateGate::kSpan;
  std::function<Hooks()> hooks = NoHooks;
  uint32_t seed = 1;

  RankResult RunRank(int rank, Hub& hub, base::Store& store) const {
    RankResult result;
    Rig rig;
    rig.store = &store;
    rig.options = TestOptions(rank, size, 20000);
    rig.options.shard_optimizer = shard;
    rig.plugins.optimizer = std::make_unique<FakeSgd>(gate);
    auto scheduler = std::make_unique<CuttingScheduler>(seed * 10 + static_cast<uint64_t>(rank));
    scheduler->stages = stages;
    result.status = rig.Make(Chain(), std::move(scheduler),
                             std::make_unique<HubCommunicator>(hub, rank), hooks());
    if (result.status.ok()) result.status = Train(*rig.executor, rank, &result);
    return result;
  }

  Status Train(exec::Executor& executor, int rank, RankResult* result) const {
    ENGINE_RETURN_IF_ERROR(executor.ShareParameters());
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const ChainBatch batch(kSamples * kWidth, step, rank);
      const auto done = executor.Step(batch.Step(step, kSamples));
      if (!done.ok()) return done.status();
    }
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    const exec::ModelMemory& memory = executor.memory();
    result->parameters = ParametersOf(memory);
    const bool has_state = executor.wire() != nullptr && executor.wire()->state_count() > 0;
    for (int32_t p = 0; p < 5 && has_state; ++p) {
      const TensorView state = exec::ViewIn(memory, executor.wire()->state(0), p);
      result->state.insert(result->state.end(), state.f32(), state.f32() + state.count());
    }
    for (const exec::Task& task : executor.tasks().tasks) {
      result->tasks.push_back(task.info);
      result->names.push_back(task.name);
    }
    return {};
  }

  std::vector<RankResult> Run() const {
    Hub hub(size, 50, seed);
    return RunRanks<RankResult>(
        size, [&](int rank, base::Store& store) { return RunRank(rank, hub, store); });
  }
};

// Bytes of all transfers of gradients and parameters of one kind.
uint64_t BytesOf(const RankResult& result, TransferKind kind) {
  uint64_t bytes = 0;
  for (const TaskInfo& task : result.tasks) {
    const bool bucket = task.kind == TaskKind::kTransfer && task.bucket != exec::kNoBucket;
    if (bucket && task.transfer == kind) bytes += task.size_bytes;
  }
  return bytes;
}

std::vector<std::string> WireTasks(const RankResult& result) {
  std::vector<std::string> names;
  for (const std::string& name : result.names) {
    if (name.find("pack ") != std::string::npos) names.push_back(name);
  }
  return names;
}

void ExpectSame(const std::vector<RankResult>& results, const std::vector<RankResult>& expected) {
  for (size_t r = 0; r < results.size(); ++r) {
    ASSERT_TRUE(results[r].status.ok()) << "rank " << r << ": " << results[r].status.message();
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
        World world{.size = size, .stages = chain.stages, .shard = chain.shard, .seed = seed};
        world.hooks = RoundTwice;
        const auto expected = world.Run();
        ASSERT_TRUE(expected[0].status.ok()) << expected[0].status.message();
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
        World world{.size = size, .stages = stages, .gate = gate};
        const auto expected = world.Run();
        ASSERT_TRUE(expected[0].status.ok()) << expected[0].status.message();
        world.hooks = Packed;
        const auto results = world.Run();
        ExpectSame(results, expected);
        for (const RankResult& result : results) {
          EXPECT_THAT(result.state, Each(static_cast<float>(kSteps))) << "packed once in each step";
        }
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
    const Status made = rig.Make(Chain(), std::make_unique<RandomScheduler>(seed),
                                 std::make_unique<FakeCommunicator>(),
                                 List(std::move(packed), std::make_unique<HalvingHook>()));
    ASSERT_TRUE(made.ok()) << made.message();
    for (const int64_t samples : {2, 1, 2}) {
      hook.scales.clear();
      const ChainBatch batch(kSamples * kWidth, 1, 0);
      ASSERT_TRUE(rig.Step(batch.Step(1, samples)).ok());
      const float targets = static_cast<float>(samples * kWidth);
      EXPECT_THAT(hook.scales, ::testing::AllOf(::testing::SizeIs(5), Each(1 / (4 * targets))));
    }
  }
}

TEST(Wire, LocalHooksComeBeforeAndReducedOnesAfter) {
  World world;
  world.hooks = RoundTwice;
  const auto expected = world.Run();
  // In any place of the chain.
  world.hooks = [] {
    return List(std::make_unique<FakePacked>(), std::make_unique<RoundingHook>(HookStage::kReduced),
                std::make_unique<RoundingHook>(HookStage::kLocal));
  };
  ExpectSame(world.Run(), expected);
}

TEST(Wire, TasksSayWhatReallyTravels) {
  for (const Chains& chain : kChains) {
    SCOPED_TRACE(chain.name);
    World world{.stages = chain.stages, .shard = chain.shard};
    const auto plain = world.Run()[0];
    world.hooks = Cast;
    const auto cast = world.Run()[0];
    ASSERT_TRUE(plain.status.ok() && cast.status.ok());
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
  World world{.stages = BucketStages::kReduceScatterAllGather, .hooks = Packed};
  const auto packed = world.Run()[0];
  ASSERT_TRUE(packed.status.ok());
  EXPECT_EQ(BytesOf(packed, TransferKind::kReduceScatter), 0u);
  // Two ranks; spans of 32, 48, 80 + 80 and twice 80 elements, a byte more each, rounded up to 16,
  // and buckets to 64.
  EXPECT_EQ(BytesOf(packed, TransferKind::kAllGather), 2u * (192 + 256 + 2 * 336 + 32 + 2 * 384));
}

TEST(Wire, PackIsOfBackwardAndUnpackComesAfterTheTransfer) {
  World world{.stages = BucketStages::kReduceScatterAllGather, .hooks = Cast};
  const auto result = world.Run()[0];
  ASSERT_TRUE(result.status.ok());
  EXPECT_THAT(
      WireTasks(result),
      ::testing::ElementsAre("hook0 pack e.bias[0..]", "hook0 pack e.bias[32..]",
                             "hook0 pack d.weight and 1 more", "hook0 pack b.weight",
                             "hook0 pack a.weight", "hook0 unpack e.bias[0..]",
                             "hook0 unpack e.bias[32..]", "hook0 unpack d.weight and 1 more",
                             "hook0 unpack b.weight", "hook0 unpack a.weight"));
  for (size_t i = 0; i < result.tasks.size(); ++i) {
    if (result.names[i].find("pack ") == std::string::npos) continue;
    const bool packs = result.names[i].find("unpack") == std::string::npos;
    EXPECT_EQ(result.tasks[i].needed_by == UINT32_MAX, packs) << result.names[i];
    EXPECT_NE(result.tasks[i].bucket, exec::kNoBucket);
  }
}

TEST(Wire, NothingIsPackedWithOneRankUnlessItIsMeasured) {
  World world{.size = 1, .hooks = Cast};
  const auto alone = world.Run()[0];
  ASSERT_TRUE(alone.status.ok()) << alone.status.message();
  EXPECT_THAT(WireTasks(alone), IsEmpty());
  world.hooks = NoHooks;
  EXPECT_EQ(world.Run()[0].parameters, alone.parameters);

  for (const auto& hooks : {Cast, Packed}) {
    Rig rig;
    const Status made = rig.Make(Chain(), std::make_unique<RandomScheduler>(),
                                 std::make_unique<FakeCommunicator>(), hooks());
    ASSERT_TRUE(made.ok()) << made.message();
    ASSERT_NE(rig.executor->wire(), nullptr);
    size_t wire_tasks = 0;
    for (const exec::Task& task : rig.executor->tasks().tasks) {
      wire_tasks +=
          task.hook_work == exec::HookWork::kPack || task.hook_work == exec::HookWork::kUnpack;
    }
    EXPECT_EQ(wire_tasks, 10u);
  }
}

// What one rank of two is told at the start.
Status Refusal(Hooks hooks, bool shard = false, uint32_t dtypes = 31) {
  Rig rig;
  rig.options = TestOptions(0, 2, 20000, "limited");
  rig.options.shard_optimizer = shard;
  auto network = std::make_unique<FakeCommunicator>(2);
  network->described.dtypes = dtypes;
  return rig.Make(Chain(), std::make_unique<RandomScheduler>(), std::move(network),
                  std::move(hooks));
}

TEST(Wire, FormsThatDoNotGoWithTheRestAreRefused) {
  const uint32_t no_bfloat16 = Bit(DType::kFloat32) | Bit(DType::kUint8);
  const uint32_t no_uint8 = Bit(DType::kFloat32) | Bit(DType::kBFloat16);
  const std::pair<Status, const char*> refusals[] = {
      {Refusal(Cast(), false, no_bfloat16),
       "'hook0' sends bfloat16, which communicator 'limited' cannot"},
      {Refusal(Packed(), false, no_uint8), "'hook0' sends uint8"},
      {Refusal(Packed(), true), "'hook0' packs whole gradients, and train.shard_optimizer"},
      {Refusal(List(std::make_unique<FakeCast>(), std::make_unique<FakePacked>())),
       "'hook0' and 'hook1'"}};
  for (const auto& [status, message] : refusals) {
    EXPECT_EQ(status.code(), StatusCode::kConfig);
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
}

TEST(Wire, AHookThatBreaksTheContractIsNamed) {
  const Status status = Refusal(List(std::make_unique<RoundingHook>(HookStage::kWire)));
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("'hook0'"), HasSubstr("engine.wire_format/2")));

  class Empty final : public WireHook {
   public:
    WireTraits wire_traits() const noexcept override { return {.kind = WireKind::kPacked}; }
    Status Pack(const WireCall&) noexcept override { return {}; }
    Status Unpack(const WireCall&) noexcept override { return {}; }
  };
  const Status empty = Refusal(List(std::make_unique<Empty>()));
  EXPECT_EQ(empty.code(), StatusCode::kPlugin);
  EXPECT_THAT(empty.message(), HasSubstr("into 0 bytes"));
}

}  // namespace
}  // namespace engine::test
