// Ranks whose parameters are at servers, those of zmq_ps in the ranks: the same results as with
// updates on ranks, and what may be different.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/ext/row_table.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/unit/exec/rank_world.h"

namespace engine::test {
namespace {

constexpr int64_t kWidth = 48;
constexpr int64_t kSamples = 2;
constexpr int64_t kRows = 9;

// y = table[x], for one number per sample. It may call another input its table: 2 is a vector.
class LookupOp final : public OpBase, public RowTableBase {
 public:
  explicit LookupOp(int32_t table) : table_(table) {}
  void* Query(std::string_view id) noexcept override {
    return id == RowTable::kId && table_ != 0 ? static_cast<RowTable*>(this) : nullptr;
  }
  int32_t table_input() const noexcept override { return table_; }
  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->parameter_count = table_ == 1 ? 1 : 2;
    signature->parameters[1] = {.name = "shift", .shape = {kWidth}};
    signature->parameters[0] = {.name = "weight", .initializer = Initializer::kOnes, .decay = 1};
    signature->parameters[0].shape = {kRows, kWidth};
    signature->output_count = 1;
    signature->outputs[0].shape = {inputs[0].shape[0], kWidth};
    signature->differentiable_inputs = 2;
    signature->backward_reads_outputs = 0;
    return {};
  }
  Status Forward(const OpCall& call) noexcept override {
    for (int64_t s = 0; s < call.inputs[0].count(); ++s) {
      std::memcpy(call.outputs[0].f32() + s * kWidth, call.inputs[1].f32() + RowOf(call, s),
                  kWidth * sizeof(float));
    }
    return {};
  }
  Status Backward(const OpCall& call) noexcept override {
    std::fill_n(call.input_grads[1].f32(), kRows * kWidth, 0.0f);
    for (int64_t s = 0; s < call.inputs[0].count(); ++s) {
      for (int64_t k = 0; k < kWidth; ++k) {
        call.input_grads[1].f32()[RowOf(call, s) + k] += call.output_grads[0].f32()[s * kWidth + k];
      }
    }
    return {};
  }

 private:
  static int64_t RowOf(const OpCall& call, int64_t sample) {
    return static_cast<const int32_t*>(call.inputs[0].data)[sample] * kWidth;
  }
  const int32_t table_;
};

plugin::OpFactory OpsWithLookup() {
  return [](const std::string& name,
            const std::vector<plugin::OwnedOption>& attributes) -> Result<std::unique_ptr<Op>> {
    if (name.starts_with("lookup")) return std::unique_ptr<Op>(new LookupOp(name.back() - '0'));
    return FakeOps()(name, attributes);
  };
}

graph::Graph MakeModel(bool with_table) {
  const SampleTensor ids{.name = "x", .dtype = DType::kInt32};
  const SampleTensor vector{.name = "x", .shape = {kWidth}};
  Net net(OpsWithLookup(), kSamples, with_table ? ids : vector,
          {.name = "target", .shape = {kWidth}, .dtype = DType::kInt32});
  ModelValue h = Net::kX;
  if (with_table) h = net.Apply("table", "lookup1", {h});
  for (const char* name : {"a", "b", "c"}) h = net.Apply(name, "scale", {h});
  return net.Finish(net.Apply("d", "shift", {h}));
}

// One transfer at a time: of those that are ready the first of the step.
class SingleTransferScheduler final : public RandomScheduler {
 public:
  void On(const SchedulerEvent& event) noexcept override {
    RandomScheduler::On(event);
    if (event.kind == EventKind::kTaskDone && event.task == under_way_) under_way_ = kNone;
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo && under_way_ != kNone) return {};
    const Action action = RandomScheduler::Next(lane);
    if (lane == Lane::kIo && action.kind == ActionKind::kRun) under_way_ = action.task;
    return action;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t under_way_ = kNone;
};

struct World {
  bool served = true;
  UpdateMode mode = UpdateMode::kSync;
  bool table = false, sparse = false;
  int size = 2;
  uint32_t seed = 1;  // of order and delays
  float state_at_begin = 0;
  bool shard = false;
  bool single_transfer = false;
  std::optional<HookStage> hook;

  std::vector<RankResult> Run() const {
    const auto hosts = MakeMemoryHosts(size);
    RankWorld world{.size = size, .seed = seed, .timeout_ms = 5000, .shard = shard};
    world.model = [this] { return MakeModel(table); };
    if (served) {
      world.communicator = [&](Hub&, int rank) {
        const OptionValues::Overrides options = {{"update", Name(mode)}};
        Host* const host = hosts[static_cast<size_t>(rank)].get();
        return CreateFrom<Communicator>(PluginPath("zmq_ps"), options, host);
      };
      world.scheduler = [this](int rank) -> std::unique_ptr<Scheduler> {
        if (single_transfer) return std::make_unique<SingleTransferScheduler>();
        return std::make_unique<RandomScheduler>(seed + static_cast<uint64_t>(rank));
      };
    }
    world.hooks = [this] {
      return hook ? HookList(std::make_unique<PassiveHook>(HookTraits{.stage = *hook})) : Hooks();
    };
    world.prepare = [this](Rig& rig) {
      rig.ops = OpsWithLookup();
      rig.options.communicator_name = "served";
      rig.options.sparse_pull = sparse;
    };
    world.batch = [this](int rank, uint64_t step) {
      StepBatch batch = ChainBatch(kSamples, kWidth, step, rank);
      for (size_t i = 0; i < kSamples && table; ++i) {
        const size_t row = 5 * i + 3 * step + static_cast<size_t>(rank);
        batch.rows.push_back(static_cast<int32_t>(row % kRows));
      }
      return batch;
    };
    world.begin = [this](exec::Executor& executor, int rank) -> Status {
      if (state_at_begin == 0 || rank > 0) return {};
      const auto count = static_cast<size_t>(executor.memory().layout().trainable_count);
      const std::vector<float> state(count, state_at_begin);
      return executor.updates().served()->SetState(0, state);
    };
    world.end = [](exec::Executor& executor, int) -> Status {
      if (executor.updates().served() == nullptr) return {};
      ENGINE_ASSIGN_OR_RETURN(const int64_t next, executor.updates().served()->NextStep());
      EXPECT_EQ(next, 13);
      return {};
    };
    return world.Run();
  }
};

void ExpectSame(const std::vector<RankResult>& results, const RankResult& expected) {
  ASSERT_THAT(expected.status, IsOk());
  for (const RankResult& result : results) {
    ASSERT_THAT(result.status, IsOk());
    EXPECT_EQ(result.parameters, expected.parameters);
    EXPECT_EQ(result.losses, expected.losses);
  }
}

TEST(Served, SyncIsEqualToUpdatesOnRanks) {
  const auto expected = World{.served = false}.Run();
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    ExpectSame(World{.seed = seed}.Run(), expected[0]);
  }
}

TEST(Served, StatesComeFromTheServersAndGoThereAtTheBegin) {
  const auto results = World{.state_at_begin = 100}.Run();
  ASSERT_THAT(results[0].status, IsOk());
  ASSERT_FALSE(results[0].states.empty());
  EXPECT_THAT(results[0].states, Each(112.0f));
  EXPECT_TRUE(results[1].states.empty());
}

TEST(Served, RowsThatABatchDoesNotReadNeedNotTravel) {
  const auto dense = World{.table = true}.Run();
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    ExpectSame(World{.table = true, .sparse = true, .seed = seed}.Run(), dense[0]);
  }
}

// Servers answer it after the push of the step before, which a scheduler that starts one transfer at
// a time would not start any more.
TEST(Served, RowsArePulledOnlyWhenTheirPushHasEnded) {
  for (const RankResult& result :
       World{.table = true, .sparse = true, .single_transfer = true}.Run()) {
    EXPECT_TRUE(result.status.ok()) << result.status.message();
  }
}

TEST(Served, AsynchronousRanksMeetAtTheEnd) {
  for (const UpdateMode mode : {UpdateMode::kAsync, UpdateMode::kBounded}) {
    SCOPED_TRACE(Name(mode));
    const auto results = World{.mode = mode, .size = 3}.Run();
    for (const RankResult& result : results) {
      ASSERT_THAT(result.status, IsOk());
      EXPECT_EQ(result.parameters, results[0].parameters);
    }
    EXPECT_THAT(results[0].states, Each(36.0f)) << "an update for each push";
    EXPECT_NE(results[0].losses, results[1].losses) << "statistics are those of the rank";
  }
}

TEST(Served, ShardedUpdatesAreRefused) {
  EXPECT_THAT(World{.shard = true}.Run()[0].status,
              FailsWith(StatusCode::kConfig,
                        AllOf(HasSubstr("train.shard_optimizer"), HasSubstr("'served'"))));
}

// Servers take sums of float32 gradients, and nobody sees those.
TEST(Served, HooksOnSumsAndOtherFormsOfGradientsAreRefused) {
  for (const auto& [stage, why] : {std::pair{HookStage::kReduced, "sums of gradients"},
                                   {HookStage::kWire, "another form than float32"}}) {
    EXPECT_THAT(World{.hook = stage}.Run()[0].status,
                FailsWith(StatusCode::kConfig,
                          AllOf(HasSubstr("'hook0'"), HasSubstr(why), HasSubstr("'served'"))));
  }
}

TEST(RowTable, IsWhatTheBatchAlonePicksRowsOf) {
  using Build = std::function<ModelValue(Net&)>;
  const auto of_input = [](const char* op) -> Build {
    return [op](Net& net) { return net.Apply("", op, {Net::kX}); };
  };
  const std::tuple<const char*, Build, int64_t> cases[] = {
      {"picked by the batch", of_input("lookup1"), kWidth},
      {"called none", of_input("lookup0"), 0},
      {"a vector", of_input("lookup2"), 0},
      {"an input that is not there", of_input("lookup7"), 0},
      {"used twice",
       [](Net& net) {
         const ModelValue rows = net.Apply("first", "lookup1", {Net::kX});
         return net.Apply("", "add", {rows, net.Parameter("first.weight")});
       },
       0},
      {"picked by another tensor",
       [](Net& net) { return net.Apply("", "lookup1", {Net::kTarget}); }, 0},
      {"picked by what an op gives",
       [](Net& net) {
         return net.Apply("", "lookup1", {net.Apply("", "add", {Net::kX, Net::kX})});
       },
       0}};
  for (const auto& [what, build, expected] : cases) {
    SCOPED_TRACE(what);
    Net net(OpsWithLookup(), kSamples, {5}, DType::kInt32);
    std::vector<int64_t> elements = exec::RowElements(net.Finish(build(net)));
    EXPECT_EQ(std::exchange(elements[0], 0), expected);
    EXPECT_THAT(elements, Each(0)) << "of a vector";
  }
}

}  // namespace
}  // namespace engine::test
