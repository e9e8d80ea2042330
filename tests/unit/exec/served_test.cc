// Ranks whose parameters are at servers, those of zmq_ps in the ranks: the same results as with
// updates on ranks, and what may be different.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "engine/ext/row_table.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/support/hub_communicator.h"
#include "tests/unit/exec/ranks.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 48;
constexpr int64_t kSamples = 2;
constexpr int64_t kRows = 9;

// y = table[x], for one number per sample.
class LookupOp final : public Op, public RowTable {
 public:
  void* Query(std::string_view id) noexcept override {
    return id == kRowTableId ? static_cast<RowTable*>(this) : nullptr;
  }
  int32_t table_input() const noexcept override { return 1; }
  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    signature->parameter_count = 1;
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
};

plugin::OpFactory OpsWithLookup() {
  return [](const std::string& name,
            const std::vector<plugin::OwnedOption>& attributes) -> Result<std::unique_ptr<Op>> {
    if (name == "lookup") return std::unique_ptr<Op>(new LookupOp());
    return FakeOps()(name, attributes);
  };
}

graph::Graph MakeModel(bool with_table) {
  const SampleTensor ids{.name = "x", .dtype = DType::kInt32};
  const SampleTensor vector{.name = "x", .shape = {kWidth}};
  Net net(OpsWithLookup(), kSamples, with_table ? ids : vector,
          {.name = "target", .shape = {kWidth}, .dtype = DType::kInt32});
  ModelValue h = Net::kX;
  if (with_table) h = net.Apply("table", "lookup", {h});
  for (const char* name : {"a", "b", "c"}) h = net.Apply(name, "scale", {h});
  return net.Finish(net.Apply("d", "shift", {h}));
}

struct RankResult {
  Status status;
  std::vector<float> parameters, states;
  std::vector<float> losses;
  int64_t next_step = 0;
};

struct World {
  bool served = true;
  UpdateMode mode = UpdateMode::kSync;
  bool table = false;
  bool sparse = false;
  int size = 2;
  uint64_t steps = 12;
  uint32_t seed = 1;  // of order and delays
  float state_at_begin = 0;
  bool shard = false;
  std::optional<HookStage> hook;

  RankResult RunRank(int rank, std::unique_ptr<Communicator> communicator,
                     std::latch& all_done) const {
    RankResult result;
    Rig rig;
    rig.ops = OpsWithLookup();
    rig.options = TestOptions(rank, size, 5000, "served");
    rig.options.shard_optimizer = shard;
    rig.options.sparse_pull = sparse;
    std::vector<std::unique_ptr<GradientHook>> hooks;
    if (hook) hooks.push_back(std::make_unique<PassiveHook>(HookTraits{*hook}));
    const uint64_t of_rank = seed == 0 ? 0 : seed + static_cast<uint64_t>(rank);
    result.status = rig.Make(MakeModel(table), std::make_unique<RandomScheduler>(of_rank),
                             std::move(communicator), std::move(hooks));
    if (result.status.ok()) result.status = Train(*rig.executor, rank, &result);
    all_done.arrive_and_wait();  // the others may still ask the server in this rank
    return result;
  }

  Status Train(exec::Executor& executor, int rank, RankResult* result) const {
    if (state_at_begin != 0 && rank == 0) {
      const auto count = static_cast<size_t>(executor.memory().layout().trainable_count);
      const std::vector<float> state(count, state_at_begin);
      ENGINE_RETURN_IF_ERROR(executor.updates().served()->SetState(0, state));
    }
    ENGINE_RETURN_IF_ERROR(executor.ShareParameters());
    for (uint64_t step = 1; step <= steps; ++step) {
      const ChainBatch batch(kSamples * kWidth, step, rank);
      exec::StepInput input = batch.Step(step, kSamples);
      std::vector<int32_t> ids(kSamples);
      for (size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<int32_t>((5 * i + 3 * step + static_cast<size_t>(rank)) % kRows);
      }
      if (table) input.input = ids.data();
      const auto done = executor.Step(input);
      if (!done.ok()) return done.status();
      result->losses.push_back(done->statistics.loss_sum);
      if (step % 5 == 0) ENGINE_RETURN_IF_ERROR(executor.Flush());
    }
    ENGINE_RETURN_IF_ERROR(executor.Flush());
    exec::ServedUpdates* const updates = executor.updates().served();
    if (executor.updates().asynchronous()) {
      ENGINE_RETURN_IF_ERROR(updates->Meet(executor.transfers()));
    }
    ENGINE_RETURN_IF_ERROR(executor.CollectStates());
    if (updates != nullptr) {
      ENGINE_ASSIGN_OR_RETURN(result->next_step, updates->NextStep());
    }
    result->parameters = ParametersOf(executor.memory());
    result->states = StatesOf(executor, 0);
    return {};
  }

  std::vector<RankResult> Run() const {
    const auto hosts = MakeMemoryHosts(size);
    Hub hub(size, 100, seed);
    std::latch all_done(size);
    return RunRanks<RankResult>(size, [&](int rank, base::Store&) {
      if (!served) return RunRank(rank, std::make_unique<HubCommunicator>(hub, rank), all_done);
      const OptionValues::Overrides options = {{"update", Name(mode)}};
      Host* const host = hosts[static_cast<size_t>(rank)].get();
      return RunRank(rank, CreateFrom<Communicator>(PluginPath("zmq_ps"), options, host), all_done);
    });
  }
};

TEST(Served, SyncIsEqualToUpdatesOnRanks) {
  World on_ranks{.served = false};
  on_ranks.seed = 0;  // collectives need one order
  const auto expected = on_ranks.Run();
  ASSERT_TRUE(expected[0].status.ok()) << expected[0].status.message();
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    for (const RankResult& result : World{.seed = seed}.Run()) {
      ASSERT_TRUE(result.status.ok()) << "seed " << seed << ": " << result.status.message();
      EXPECT_EQ(result.parameters, expected[0].parameters) << "seed " << seed;
      EXPECT_EQ(result.losses, expected[0].losses) << "seed " << seed;
      EXPECT_EQ(result.next_step, 13);
    }
  }
}

TEST(Served, StatesComeFromTheServersAndGoThereAtTheBegin) {
  const auto results = World{.state_at_begin = 100}.Run();
  ASSERT_TRUE(results[0].status.ok()) << results[0].status.message();
  ASSERT_FALSE(results[0].states.empty());
  EXPECT_THAT(results[0].states, Each(112.0f));
  EXPECT_TRUE(results[1].states.empty());
}

TEST(Served, RowsThatABatchDoesNotReadNeedNotTravel) {
  const auto dense = World{.table = true}.Run();
  ASSERT_TRUE(dense[0].status.ok()) << dense[0].status.message();
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    for (const RankResult& result : World{.table = true, .sparse = true, .seed = seed}.Run()) {
      ASSERT_TRUE(result.status.ok()) << "seed " << seed << ": " << result.status.message();
      EXPECT_EQ(result.losses, dense[0].losses) << "seed " << seed;
      EXPECT_EQ(result.parameters, dense[0].parameters) << "seed " << seed;
    }
  }
}

TEST(Served, AsynchronousRanksMeetAtTheEnd) {
  for (const UpdateMode mode : {UpdateMode::kAsync, UpdateMode::kBounded}) {
    const auto results = World{.mode = mode, .size = 3}.Run();
    for (const RankResult& result : results) {
      ASSERT_TRUE(result.status.ok()) << Name(mode) << ": " << result.status.message();
      EXPECT_EQ(result.parameters, results[0].parameters) << Name(mode);
      EXPECT_EQ(result.next_step, 13);
    }
    EXPECT_THAT(results[0].states, Each(36.0f)) << "an update for each push";
    EXPECT_NE(results[0].losses, results[1].losses) << "statistics are those of the rank";
  }
}

TEST(Served, ShardedUpdatesAreRefused) {
  const auto results = World{.shard = true}.Run();
  EXPECT_EQ(results[0].status.code(), StatusCode::kConfig);
  EXPECT_THAT(results[0].status.message(),
              AllOf(HasSubstr("train.shard_optimizer"), HasSubstr("'served'")));
}

TEST(Served, HooksOnSumsAndOtherFormsOfGradientsAreRefused) {
  for (const auto& [stage, words] : {std::pair(HookStage::kReduced, "update"),
                                     std::pair(HookStage::kWire, "other form than float32")}) {
    const auto results = World{.hook = stage}.Run();
    EXPECT_EQ(results[0].status.code(), StatusCode::kConfig);
    EXPECT_THAT(results[0].status.message(),
                AllOf(HasSubstr("'hook0'"), HasSubstr("'served'"), HasSubstr(words)));
  }
}

}  // namespace
}  // namespace engine::test
