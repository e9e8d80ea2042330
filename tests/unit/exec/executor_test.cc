#include "core/exec/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/exec/tangled_graph.h"

namespace engine::test {
namespace {

using ::testing::HasSubstr;

TEST(ExecutorTest, AnyLegalOrderGivesTheSameBitsAsTheSequentialOne) {
  const BatchData batch;
  Rig sequential;
  ASSERT_TRUE(sequential.Make(TangledGraph()).ok());
  for (uint64_t step = 1; step <= 2; ++step) ASSERT_TRUE(sequential.Step(batch.Step(step)).ok());
  const std::vector<float> expected = sequential.Parameters();
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rig rig;
    ASSERT_TRUE(rig.Make(TangledGraph(), seed).ok());
    for (uint64_t step = 1; step <= 2; ++step) ASSERT_TRUE(rig.Step(batch.Step(step)).ok());
    ASSERT_EQ(rig.Parameters(), expected) << "seed " << seed;
  }
}

// Values with several uses as inputs of an op that gives all of them one gradient.
graph::Graph EqualGradientsGraph(const std::string& sum_op) {
  graph::GraphBuilder builder(FakeOps(), kSamples);
  const graph::ValueId x = builder.Input("x", {kWidth}, DType::kFloat32);
  graph::ValueId h = Must(builder.Apply("stem", "scale", {x}));
  for (const char* name : {"a", "b"}) {
    const std::string block = name;
    const graph::ValueId f = Must(builder.Apply(block + ".f", "scale", {h}));
    const graph::ValueId g = Must(builder.Apply(block + ".g", "scale_slow", {f}));
    const graph::ValueId s = Must(builder.Apply(block + ".shift", "shift", {h}));
    h = Must(builder.Apply(block + ".sum", sum_op, {h, f, g, s, h}));
    h = Must(builder.Apply(block + ".add", "add",
                           {h, Must(builder.Apply(block + ".later", "scale", {f}))}));
  }
  return Finished(builder, x, Must(builder.Apply("last", "shift", {h})));
}

TEST(ExecutorTest, EqualGradientsInOneMemoryGiveTheSameBits) {
  const BatchData batch;
  exec::StepInput input = batch.Step(1);
  input.learning_rate = 0.01f;
  Rig apart;
  ASSERT_TRUE(apart.Make(EqualGradientsGraph("doubled_sum_apart")).ok());
  ASSERT_TRUE(apart.Step(input).ok());
  for (const char* op : {"doubled_sum", "doubled_sum_adds"}) {
    for (uint64_t seed = 0; seed <= 50; ++seed) {
      Rig rig;
      ASSERT_TRUE(rig.Make(EqualGradientsGraph(op), seed).ok());
      ASSERT_TRUE(rig.Step(input).ok());
      ASSERT_EQ(rig.Parameters(), apart.Parameters()) << op << ", seed " << seed;
    }
  }
}

// The gradient of the tangled graph, by central differences of its own loss (exact: the loss is
// linear in each single parameter of one layer).
TEST(ExecutorTest, GradientsAreThoseOfTheLoss) {
  const BatchData batch;
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph()).ok());
  exec::StepInput input = batch.Step(1);
  input.learning_rate = 0;
  ASSERT_TRUE(rig.Step(input).ok());
  exec::ModelMemory& memory = rig.executor->memory();
  const auto loss = [&] {
    EXPECT_TRUE(memory.SetBatch(batch.input.data(), batch.target.data(), kSamples).ok());
    EXPECT_TRUE(memory.RunForward().ok());
    return memory.statistics()->loss_sum;
  };
  for (size_t p = 0; p < memory.graph().parameters.size(); ++p) {
    const int64_t offset = memory.layout().offset[p];
    for (int64_t i = 0; i < kWidth; ++i) {
      float& value = memory.parameters()[offset + i];
      const float gradient = memory.gradients()[offset + i];
      value += 1;
      const float up = loss();
      value -= 2;
      const float down = loss();
      value += 1;
      EXPECT_FLOAT_EQ(gradient, (up - down) / 2) << memory.graph().parameters[p].name << " " << i;
    }
  }
}

TEST(ExecutorTest, FrozenAndUnreachedParametersAreNeitherSentNorUpdated) {
  graph::GraphBuilder builder(FakeOps(), kSamples);
  const graph::ValueId x = builder.Input("x", {kWidth}, DType::kFloat32);
  const graph::ValueId a = Must(builder.Apply("a", "scale", {x}));
  const graph::ValueId b = Must(builder.Apply("b", "scale", {a}));
  Must(builder.Apply("dead", "scale", {a}));
  Rig rig;
  ASSERT_TRUE(rig.Make(Finished(builder, x, b, {"a."})).ok());
  const BatchData batch;
  ASSERT_TRUE(rig.Step(batch.Step(1)).ok());
  EXPECT_EQ(rig.executor->unreached_parameters(), std::vector<std::string>{"dead.weight"});
  ASSERT_EQ(rig.communicator->submitted.size(), 2u);  // statistics and b.weight
  for (const exec::Task& task : rig.executor->tasks().tasks) {
    EXPECT_EQ(task.name.find("backward a"), std::string::npos) << "work for a frozen layer";
    EXPECT_EQ(task.name.find("backward dead"), std::string::npos);
  }
  const exec::ModelMemory& memory = rig.executor->memory();
  EXPECT_EQ(memory.parameters()[memory.layout().offset[0]], 1);
  EXPECT_EQ(memory.parameters()[memory.layout().offset[2]], 1);
  const float* trained = memory.parameters() + memory.layout().offset[1];
  EXPECT_NE(std::vector<float>(trained, trained + kWidth), std::vector<float>(kWidth, 1));
}

TEST(ExecutorTest, MeanIsOverTheSamplesOfAllRanks) {
  // Two ranks that hold the same: sums and counts double, so the update is that of one rank.
  const BatchData batch;
  Rig one, two;
  ASSERT_TRUE(one.Make(TangledGraph()).ok());
  ASSERT_TRUE(two.Make(TangledGraph(), std::make_unique<RandomScheduler>(),
                       std::make_unique<FakeCommunicator>(2), {}, 2)
                  .ok());
  const auto first = one.Step(batch.Step(1));
  const auto second = two.Step(batch.Step(1));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(second->statistics.count, 2 * first->statistics.count);
  EXPECT_EQ(second->statistics.loss_sum, 2 * first->statistics.loss_sum);
  EXPECT_EQ(one.Parameters(), two.Parameters());
}

TEST(ExecutorTest, RankWithFewerOrNoSamplesTakesPart) {
  const BatchData batch;
  for (int64_t samples : {int64_t{2}, int64_t{0}}) {
    Rig rig;
    ASSERT_TRUE(rig.Make(TangledGraph()).ok());
    ASSERT_TRUE(rig.Step(batch.Step(1)).ok());  // leaves something in every buffer
    const std::vector<float> before = rig.Parameters();
    const auto result = rig.Step(batch.Step(2, samples));
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_EQ(result->statistics.count, static_cast<float>(samples * kWidth));
    if (samples == 0) {
      EXPECT_EQ(rig.Parameters(), before);
      for (int64_t i = 0; i < rig.executor->memory().layout().trainable_count; ++i) {
        ASSERT_EQ(rig.executor->memory().gradients()[i], 0);
      }
    }
  }
}

TEST(ExecutorTest, GradientsAreSentWhileBackwardGoesOn) {
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph(), 0, std::chrono::microseconds(200)).ok());
  const BatchData batch;
  ASSERT_TRUE(rig.Step(batch.Step(1)).ok());
  int64_t last_backward = 0, first_transfer = INT64_MAX;
  for (const trace::Span& record : TaskSpans(*rig.executor, 1)) {
    const TaskInfo& task = rig.executor->tasks().tasks[record.task].info;
    if (task.kind == TaskKind::kBackward) last_backward = std::max(last_backward, record.begin_ns);
    if (task.kind == TaskKind::kTransfer && task.unit != exec::kNoUnit) {
      first_transfer = std::min(first_transfer, record.begin_ns);
    }
  }
  EXPECT_LT(first_transfer, last_backward);
  EXPECT_EQ(TaskSpans(*rig.executor, 1).size(), rig.executor->tasks().tasks.size());
}

TEST(ExecutorTest, FailedTransferNamesTensorAndRank) {
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph(), 0, std::chrono::microseconds(100)).ok());
  rig.communicator->fail_sequence = 3;
  const BatchData batch;
  const auto result = rig.Step(batch.Step(1));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kPeerLost);
  EXPECT_EQ(result.status().rank(), 1);
  EXPECT_THAT(result.status().message(),
              HasSubstr("transfer c.side.weight: lost connection to rank 1"));
}

// Steps without a flush between them, transfers that take their time and a scheduler that picks at
// random: the parameters must be those of one step after the other.
TEST(ExecutorTest, StepsThatOverlapGiveTheSameBits) {
  const BatchData batch;
  const auto small = [&](uint64_t step) {
    exec::StepInput input = batch.Step(step);
    input.learning_rate = 0.01f;
    return input;
  };
  Rig sequential;
  ASSERT_TRUE(sequential.Make(TangledGraph()).ok());
  for (uint64_t step = 1; step <= 4; ++step) ASSERT_TRUE(sequential.Step(small(step)).ok());
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Rig rig;
    ASSERT_TRUE(rig.Make(TangledGraph(), seed, std::chrono::microseconds(200)).ok());
    for (uint64_t step = 1; step <= 4; ++step) ASSERT_TRUE(rig.executor->Step(small(step)).ok());
    ASSERT_TRUE(rig.executor->Flush().ok());
    ASSERT_EQ(rig.Parameters(), sequential.Parameters()) << "seed " << seed;
  }
}

// Without transfers: the same bits, whatever the order, and the same statistics.
TEST(ExecutorTest, OneRankSendsNothing) {
  const BatchData batch;
  const auto small = [&](uint64_t step) {
    exec::StepInput input = batch.Step(step);
    input.learning_rate = 0.01f;
    return input;
  };
  for (const std::vector<std::string>& frozen :
       {std::vector<std::string>{}, {"b.", "last."}, {"stem.", "a.", "b.", "c.", "last."}}) {
    Rig sends;
    ASSERT_TRUE(sends.Make(TangledGraph(frozen)).ok());
    exec::StepResult wanted;
    for (uint64_t step = 1; step <= 4; ++step) wanted = *sends.Step(small(step));
    for (uint64_t seed = 0; seed <= 40; ++seed) {
      Rig rig;
      rig.sends_alone = false;
      ASSERT_TRUE(rig.Make(TangledGraph(frozen), seed).ok());
      Result<exec::StepResult> made = exec::StepResult();
      for (uint64_t step = 1; step <= 4 && made.ok(); ++step) {
        made = rig.executor->Step(small(step));
      }
      ASSERT_TRUE(made.ok()) << made.status().message();
      ASSERT_TRUE(rig.executor->Flush().ok());
      ASSERT_EQ(rig.Parameters(), sends.Parameters()) << "seed " << seed;
      EXPECT_EQ(made->statistics.loss_sum, wanted.statistics.loss_sum);
      EXPECT_TRUE(rig.communicator->submitted.empty());
    }
    EXPECT_FALSE(sends.communicator->submitted.empty());
  }
}

}  // namespace
}  // namespace engine::test
