#include "core/exec/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 3;
constexpr int64_t kSamples = 4;

graph::ValueId Must(Result<graph::ValueId> value) {
  EXPECT_TRUE(value.ok()) << value.status().message();
  return value.ok() ? *value : graph::kNone;
}

graph::Graph Finished(graph::GraphBuilder& builder, graph::ValueId input, graph::ValueId logits,
                      const std::vector<std::string>& frozen = {}, int64_t width = kWidth) {
  return FinishedModel(builder, input, logits, width, frozen);
}

// Residual blocks, a value used three times, a value used twice by one op, and ops that can and
// cannot add to a gradient: everything that makes gradients share memory.
graph::Graph TangledGraph(const std::vector<std::string>& frozen = {}) {
  graph::GraphBuilder builder(FakeOps(), kSamples);
  const graph::ValueId x = builder.Input("x", {kWidth}, DType::kFloat32);
  graph::ValueId h = Must(builder.Apply("stem", "scale", {x}));
  for (const char* name : {"a", "b", "c"}) {
    const std::string block = name;
    graph::ValueId f =
        Must(builder.Apply(block + ".scale", block == "b" ? "scale_slow" : "scale", {h}));
    f = Must(builder.Apply(block + ".shift", "shift", {f}));
    const graph::ValueId g = Must(builder.Apply(block + ".side", "scale_slow", {h}));
    h = Must(builder.Apply(block + ".add", "add", {h, f}));
    h = Must(builder.Apply(block + ".add_side", "add", {g, h}));
  }
  h = Must(builder.Apply("twice", "add", {h, h}));
  return Finished(builder, x, Must(builder.Apply("last", "shift", {h})), frozen);
}

struct BatchData {
  const int64_t width;
  std::vector<float> input;
  std::vector<int32_t> target;
  explicit BatchData(int64_t elements = kWidth) : width(elements) {
    for (int i = 0; i < kSamples * width; ++i) {
      input.push_back(static_cast<float>(i % 5 - 2));
      target.push_back(i % 3);
    }
  }
  exec::StepInput Step(uint64_t step, int64_t samples = kSamples) const {
    // A rate that keeps every value a small integer, exact in float32.
    return {.input = input.data(),
            .target = target.data(),
            .samples = samples,
            .step = step,
            .learning_rate = static_cast<float>(samples * width)};
  }
};

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

// Sends what the next forward pass needs first, one transfer at a time.
class ForwardOrderScheduler final : public RandomScheduler {
 public:
  Status Begin(std::span<const TaskInfo> tasks) noexcept override {
    infos_.assign(tasks.begin(), tasks.end());
    return RandomScheduler::Begin(tasks);
  }
  void On(const SchedulerEvent& event) noexcept override {
    const bool io = event.kind <= EventKind::kTaskDone && event.kind >= EventKind::kTaskReady &&
                    infos_[event.task].lane == Lane::kIo;
    if (!io) return RandomScheduler::On(event);
    if (event.kind == EventKind::kTaskReady) waiting_.push_back(event.task);
    if (event.kind == EventKind::kTaskDone) --under_way_;
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kCompute) return RandomScheduler::Next(lane);
    if (waiting_.empty() || under_way_ > 0) return {};
    const auto first = std::min_element(waiting_.begin(), waiting_.end(), [&](auto a, auto b) {
      const auto key = [&](uint32_t task) {
        return infos_[task].unit == exec::kNoUnit ? 0 : infos_[task].needed_by + 1;
      };
      return key(a) < key(b);
    });
    const uint32_t task = *first;
    waiting_.erase(first);
    ++under_way_;
    return {.kind = ActionKind::kRun, .task = task};
  }

 private:
  std::vector<TaskInfo> infos_;
  std::vector<uint32_t> waiting_;
  int under_way_ = 0;
};

TEST(ExecutorTest, ForwardBeginsBeforeAllOfTheLastStepHasArrived) {
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph(), std::make_unique<ForwardOrderScheduler>(),
                       std::make_unique<FakeCommunicator>(1, std::chrono::milliseconds(2)))
                  .ok());
  const BatchData batch;
  ASSERT_TRUE(rig.executor->Step(batch.Step(1)).ok());
  EXPECT_FALSE(rig.executor->flushed());
  ASSERT_TRUE(rig.executor->Step(batch.Step(2)).ok());
  ASSERT_TRUE(rig.executor->Flush().ok());
  int64_t first_forward = INT64_MAX, last_transfer = 0;
  for (const trace::Span& span : TaskSpans(*rig.executor, 2)) {
    const exec::Task& task = rig.executor->tasks().tasks[span.task];
    if (!task.reads.empty()) first_forward = std::min(first_forward, span.begin_ns);
  }
  for (const trace::Span& span : TaskSpans(*rig.executor, 1)) {
    if (rig.executor->tasks().tasks[span.task].info.kind != TaskKind::kTransfer) continue;
    last_transfer = std::max(last_transfer, span.end_ns);
  }
  EXPECT_LT(first_forward, last_transfer);
}

// Keeps the task with this kind back for ever.
class HoldingScheduler final : public RandomScheduler {
 public:
  Action Next(Lane lane) noexcept override {
    return lane == Lane::kIo ? Action{} : RandomScheduler::Next(lane);
  }
};

TEST(ExecutorTest, SchedulerThatHoldsForEverIsReportedAsStalled) {
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph(), std::make_unique<HoldingScheduler>(),
                       std::make_unique<FakeCommunicator>())
                  .ok());
  const BatchData batch;
  const auto result = rig.Step(batch.Step(1));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kTimeout);
  EXPECT_THAT(result.status().message(),
              HasSubstr("scheduler 'test_sched' holds 'transfer statistics'"));
}

class ImpatientScheduler final : public RandomScheduler {
 public:
  Action Next(Lane lane) noexcept override {
    return lane == Lane::kIo ? Action{} : Action{.kind = ActionKind::kRun, .task = 5};
  }
};

TEST(ExecutorTest, SchedulerThatRunsWhatIsNotReadyIsNamed) {
  Rig rig;
  ASSERT_TRUE(rig.Make(TangledGraph(), std::make_unique<ImpatientScheduler>(),
                       std::make_unique<FakeCommunicator>())
                  .ok());
  const BatchData batch;
  const auto result = rig.Step(batch.Step(1));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kPlugin);
  EXPECT_THAT(result.status().message(), HasSubstr("scheduler 'test_sched' asked for task 5"));
}

// A plan that says whatever the test wants.
class PlanningScheduler final : public RandomScheduler {
 public:
  explicit PlanningScheduler(std::vector<std::vector<UnitSpan>> units) : units_(std::move(units)) {}
  Status Plan(const ModelInfo&, PlanSink& sink) noexcept override {
    for (const auto& unit : units_) sink.AddUnit(unit, 0, stages);
    return {};
  }

 private:
  const std::vector<std::vector<UnitSpan>> units_;
};

graph::Graph TwoParameters(int64_t width = kWidth) {
  graph::GraphBuilder builder(FakeOps(), kSamples);
  const graph::ValueId x = builder.Input("x", {width}, DType::kFloat32);
  const graph::ValueId a = Must(builder.Apply("a", "scale", {x}));
  return Finished(builder, x, Must(builder.Apply("b", "shift", {a})), {}, width);
}

TEST(ExecutorTest, PlansThatDoNotCoverEveryParameterOnceAreRefused) {
  using Span = UnitSpan;
  const std::vector<std::pair<std::vector<std::vector<Span>>, std::string>> cases = {
      {{{Span{0, 0, 0, 3}}}, "0 of 3 elements of 'a.weight'"},
      {{{Span{0, 0, 0, 3}, Span{1, 0, 0, 2}}}, "a cut of 'a.weight' after 2 elements"},
      {{{Span{0, 0, 0, 3}}, {Span{0, 0, 0, 3}}, {Span{1, 0, 0, 3}}}, "after 3 of its 3"},
      {{{Span{0, 0, 1, 2}}, {Span{1, 0, 0, 3}}}, "elements 1+2"},
      {{{Span{0, 0, 0, 1}}, {Span{1, 0, 0, 3}}, {Span{0, 0, 1, 2}}}, "a cut of 'b.bias' after 1"},
      {{{Span{2, 0, 0, 3}}}, "parameter 2, which does not exist"},
      {{{}}, "an empty unit"},
  };
  for (const auto& [units, message] : cases) {
    Rig rig;
    const Status status = rig.Make(TwoParameters(), std::make_unique<PlanningScheduler>(units),
                                   std::make_unique<FakeCommunicator>());
    EXPECT_EQ(status.code(), StatusCode::kPlugin) << message;
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_THAT(status.message(), HasSubstr("scheduler 'test_sched'"));
  }
}

constexpr int64_t kWide = 48;  // three slices of 16

TEST(ExecutorTest, SlicedAndFusedUnitsGiveTheSameBits) {
  const BatchData batch(kWide);
  Rig plain, sliced;
  ASSERT_TRUE(plain.Make(TwoParameters(kWide)).ok());
  const std::vector<std::vector<UnitSpan>> units = {{{0, 0, 0, 32}},
                                                    {{0, 0, 32, 16}, {1, 0, 0, kWide}}};
  ASSERT_TRUE(sliced
                  .Make(TwoParameters(kWide), std::make_unique<PlanningScheduler>(units),
                        std::make_unique<FakeCommunicator>())
                  .ok());
  ASSERT_TRUE(plain.Step(batch.Step(1)).ok());
  ASSERT_TRUE(sliced.Step(batch.Step(1)).ok());
  EXPECT_EQ(plain.Parameters(), sliced.Parameters());
  EXPECT_EQ(sliced.communicator->submitted.size(), 3u);
}

TEST(ExecutorTest, CutsThatRanksCannotShareAreRefused) {
  Rig rig;
  const std::vector<std::vector<UnitSpan>> units = {{{0, 0, 0, 20}},
                                                    {{0, 0, 20, 28}, {1, 0, 0, kWide}}};
  const Status status = rig.Make(TwoParameters(kWide), std::make_unique<PlanningScheduler>(units),
                                 std::make_unique<FakeCommunicator>());
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), HasSubstr("after 20 elements, which is no multiple of 16"));
}

TEST(ExecutorTest, SplitSumsGiveTheSameBits) {
  const BatchData batch;
  Rig plain, split;
  auto scheduler = std::make_unique<RandomScheduler>(7);
  scheduler->stages = UnitStages::kReduceScatterAllGather;
  ASSERT_TRUE(plain.Make(TangledGraph()).ok());
  ASSERT_TRUE(
      split.Make(TangledGraph(), std::move(scheduler), std::make_unique<FakeCommunicator>()).ok());
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(plain.Step(batch.Step(step)).ok());
    ASSERT_TRUE(split.Step(batch.Step(step)).ok());
  }
  EXPECT_EQ(plain.Parameters(), split.Parameters());
}

// The graph of the first distributed pull requests of the field: ab = a + b, cd = c + d, final = ab
// + cd.
TEST(ExecutorTest, OrderIsTheSameOnEveryPass) {
  graph::GraphBuilder builder(FakeOps(), kSamples);
  const graph::ValueId x = builder.Input("x", {kWidth}, DType::kFloat32);
  std::vector<graph::ValueId> leaf;
  for (const char* name : {"a", "b", "c", "d"})
    leaf.push_back(Must(builder.Apply(name, "constant", {x})));
  const graph::ValueId ab = Must(builder.Apply("ab", "add", {leaf[0], leaf[1]}));
  const graph::ValueId cd = Must(builder.Apply("cd", "add", {leaf[2], leaf[3]}));
  Rig rig;
  ASSERT_TRUE(rig.Make(Finished(builder, x, Must(builder.Apply("final", "add", {ab, cd})))).ok());
  const BatchData batch;
  ASSERT_TRUE(rig.Step(batch.Step(1)).ok());
  const std::vector<uint32_t> first = rig.scheduler->order;
  rig.scheduler->order.clear();
  ASSERT_TRUE(rig.Step(batch.Step(2)).ok());
  EXPECT_EQ(rig.scheduler->order, first) << ::testing::PrintToString(NamesOf(*rig.executor, first));
}

// Says what it sees.
class RecordingHook final : public PassiveHook {
 public:
  RecordingHook(HookTraits traits, std::string name, std::vector<std::string>* log)
      : PassiveHook(traits), name_(std::move(name)), log_(log) {}
  Status Setup(uint32_t count) noexcept override {
    return log_->push_back(name_ + " setup " + std::to_string(count)), Status();
  }
  Status Observe(const GradientView& view) noexcept override { return Note("observe", view); }
  Status Apply(const GradientView& view) noexcept override {
    if (traits().stage == HookStage::kReduced) *view.scale *= 0.5f;
    return Note("apply", view);
  }

 private:
  Status Note(const char* what, const GradientView& view) {
    log_->push_back(name_ + " " + what + " " + std::string(view.name));
    return {};
  }
  const std::string name_;
  std::vector<std::string>* const log_;
};

TEST(ExecutorTest, HooksRunInConfiguredOrderAndGlobalOnesSeeAllFirst) {
  std::vector<std::string> log;
  std::vector<std::unique_ptr<GradientHook>> hooks;
  hooks.push_back(std::make_unique<RecordingHook>(
      HookTraits{HookStage::kReduced, HookScope::kGlobal}, "norm", &log));
  hooks.push_back(std::make_unique<RecordingHook>(
      HookTraits{HookStage::kReduced, HookScope::kTensor}, "value", &log));
  hooks.push_back(std::make_unique<RecordingHook>(HookTraits{HookStage::kLocal, HookScope::kTensor},
                                                  "local", &log));
  Rig rig, plain;
  ASSERT_TRUE(rig.Make(TwoParameters(), std::make_unique<RandomScheduler>(),
                       std::make_unique<FakeCommunicator>(), std::move(hooks))
                  .ok());
  ASSERT_TRUE(plain.Make(TwoParameters()).ok());
  const BatchData batch;
  ASSERT_TRUE(rig.Step(batch.Step(1)).ok());
  ASSERT_TRUE(plain.Step(batch.Step(1)).ok());
  EXPECT_EQ(log, (std::vector<std::string>{"norm setup 2", "value setup 2", "local setup 2",
                                           "local apply b.bias", "local apply a.weight",
                                           "norm observe b.bias", "norm observe a.weight",
                                           "norm apply b.bias", "norm apply a.weight",
                                           "value apply b.bias", "value apply a.weight"}));
  // Two hooks halve the scale: a quarter of the plain update.
  const float moved = 1 - rig.Parameters()[rig.executor->memory().layout().offset[0]];
  const float plain_moved = 1 - plain.Parameters()[plain.executor->memory().layout().offset[0]];
  EXPECT_FLOAT_EQ(moved, plain_moved / 4);
}

TEST(ExecutorTest, GlobalHookOnLocalGradientsIsRefused) {
  std::vector<std::string> log;
  std::vector<std::unique_ptr<GradientHook>> hooks;
  hooks.push_back(std::make_unique<RecordingHook>(HookTraits{HookStage::kLocal, HookScope::kGlobal},
                                                  "bad", &log));
  Rig rig;
  const Status status = rig.Make(TwoParameters(), std::make_unique<RandomScheduler>(),
                                 std::make_unique<FakeCommunicator>(), std::move(hooks));
  EXPECT_EQ(status.code(), StatusCode::kPlugin);
  EXPECT_THAT(status.message(), HasSubstr("hook 'hook0'"));
}

}  // namespace
}  // namespace engine::test
