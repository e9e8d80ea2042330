#include "core/exec/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/exec/tangled_graph.h"

namespace engine::test {
namespace {

// One step after the other, and steps that overlap, with transfers that take their time.
TEST(ExecutorTest, AnyLegalOrderGivesTheSameBitsAsTheSequentialOne) {
  Rig sequential;
  ASSERT_TRUE(sequential.Make(TangledGraph()).ok());
  const std::vector<float> expected = Trained(&sequential, 4);
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const bool overlap = seed <= 20;
    Rig rig;
    ASSERT_TRUE(rig.Make(TangledGraph(), seed, std::chrono::microseconds(overlap ? 200 : 0)).ok());
    ASSERT_EQ(Trained(&rig, 4, !overlap), expected) << "seed " << seed;
  }
}

// Values with several uses as inputs of an op that gives all of them one gradient.
graph::Graph EqualGradientsGraph(const std::string& sum_op) {
  Net net(FakeOps(), kSamples, {kWidth});
  ModelValue h = net.Apply("stem", "scale", {Net::kX});
  for (const char* name : {"a", "b"}) {
    const std::string block = name;
    const ModelValue f = net.Apply(block + ".f", "scale", {h});
    const ModelValue g = net.Apply(block + ".g", "scale_slow", {f});
    const ModelValue s = net.Apply(block + ".shift", "shift", {h});
    h = net.Apply(block + ".sum", sum_op, {h, f, g, s, h});
    h = net.Apply(block + ".add", "add", {h, net.Apply(block + ".later", "scale", {f})});
  }
  return net.Finish(net.Apply("last", "shift", {h}));
}

TEST(ExecutorTest, EqualGradientsInOneMemoryGiveTheSameBits) {
  Rig apart;
  ASSERT_TRUE(apart.Make(EqualGradientsGraph("doubled_sum_apart")).ok());
  const std::vector<float> expected = Trained(&apart, 1);
  for (const char* op : {"doubled_sum", "doubled_sum_adds"}) {
    for (uint64_t seed = 0; seed <= 50; ++seed) {
      Rig rig;
      ASSERT_TRUE(rig.Make(EqualGradientsGraph(op), seed).ok());
      ASSERT_EQ(Trained(&rig, 1), expected) << op << ", seed " << seed;
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
  Net net(FakeOps(), kSamples, {kWidth});
  const ModelValue a = net.Apply("a", "scale", {Net::kX});
  const ModelValue b = net.Apply("b", "scale", {a});
  net.Apply("dead", "scale", {a});
  Rig rig;
  ASSERT_TRUE(rig.Make(net.Finish(b, {"a."})).ok());
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

TEST(ExecutorTest, GradientsAreSentWhileBackwardGoesOn) {
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph(), 0, std::chrono::microseconds(200)).ok());
  const BatchData batch;
  ASSERT_TRUE(rig.Step(batch.Step(1)).ok());
  int64_t last_backward = 0, first_transfer = INT64_MAX;
  for (const trace::Span& record : TaskSpans(*rig.executor, 1)) {
    const TaskInfo& task = rig.executor->tasks().tasks[record.task].info;
    if (task.kind == TaskKind::kBackward) last_backward = std::max(last_backward, record.begin_ns);
    if (task.kind == TaskKind::kTransfer && task.bucket != exec::kNoBucket) {
      first_transfer = std::min(first_transfer, record.begin_ns);
    }
  }
  EXPECT_LT(first_transfer, last_backward);
  EXPECT_EQ(TaskSpans(*rig.executor, 1).size(), rig.executor->tasks().tasks.size());
}

TEST(ExecutorTest, TheTraceSaysWhenTheFirstByteOfATransferLeft) {
  constexpr std::chrono::nanoseconds kDelay = std::chrono::microseconds(200);
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph(), 0, std::chrono::microseconds(200)).ok());
  const BatchData batch;
  ASSERT_TRUE(rig.Step(batch.Step(1)).ok());
  for (const trace::Span& span : TaskSpans(*rig.executor, 1)) {
    if (rig.executor->tasks().tasks[span.task].info.kind != TaskKind::kTransfer) continue;
    EXPECT_GE(span.wire_ns, span.begin_ns + kDelay.count());
    EXPECT_LE(span.wire_ns, span.end_ns);
  }
}

// Holds transfers back until the head of a step is done, so that several are started in turn.
class LateTransfers final : public RandomScheduler {
 public:
  void On(const SchedulerEvent& event) noexcept override {
    if (event.kind == EventKind::kBackwardEnd) backward_done_ = true;
    RandomScheduler::On(event);
  }
  Action Next(Lane lane) noexcept override {
    return lane == Lane::kCompute || backward_done_ ? RandomScheduler::Next(lane) : Action();
  }

 private:
  bool backward_done_ = false;
};

TEST(ExecutorTest, AFailedTransferNamesTensorAndRankAndIsTheLast) {
  Rig rig;
  ASSERT_THAT(rig.Make(TangledGraph(), std::make_unique<LateTransfers>()), IsOk());
  rig.communicator->fail_sequence = 2;
  const BatchData batch;
  const Status status = rig.Step(batch.Step(1)).status();
  EXPECT_THAT(
      status,
      FailsWith(StatusCode::kPeerLost,
                HasSubstr("transfer last.bias: communicator 'hub': lost connection to rank 1")));
  EXPECT_EQ(status.rank(), 1);
  EXPECT_EQ(rig.communicator->submitted.size(), 2u);
}

// Without transfers: the same bits, whatever the order, and the same statistics.
TEST(ExecutorTest, OneRankSendsNothing) {
  for (const std::vector<std::string>& frozen :
       {std::vector<std::string>{}, {"b.", "last."}, {"stem.", "a.", "b.", "c.", "last."}}) {
    Rig sends;
    ASSERT_TRUE(sends.Make(TangledGraph(frozen)).ok());
    const std::vector<float> expected = Trained(&sends, 4);
    EXPECT_FALSE(sends.communicator->submitted.empty());
    const float loss = sends.executor->memory().statistics()->loss_sum;
    for (uint64_t seed = 0; seed <= 40; ++seed) {
      Rig rig;
      rig.options.sends_alone = false;
      ASSERT_TRUE(rig.Make(TangledGraph(frozen), seed).ok());
      ASSERT_EQ(Trained(&rig, 4, /*flushes=*/false), expected) << "seed " << seed;
      EXPECT_EQ(rig.executor->memory().statistics()->loss_sum, loss);
      EXPECT_TRUE(rig.communicator->submitted.empty());
    }
  }
}

}  // namespace
}  // namespace engine::test
