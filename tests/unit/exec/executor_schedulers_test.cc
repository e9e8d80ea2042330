// What schedulers and hooks of every kind may do, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/exec/executor.h"
#include "tests/unit/exec/tangled_graph.h"

namespace engine::test {
namespace {

// Sends what the next forward pass needs first, one transfer at a time.
class ForwardOrderScheduler final : public RandomScheduler {
 public:
  void On(const SchedulerEvent& event) noexcept override {
    const bool io = event.kind <= EventKind::kTaskDone && event.kind >= EventKind::kTaskReady &&
                    tasks_[event.task].lane == Lane::kIo;
    if (!io) return RandomScheduler::On(event);
    if (event.kind == EventKind::kTaskReady) waiting_.push_back(event.task);
    if (event.kind == EventKind::kTaskDone) --under_way_;
  }
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kCompute) return RandomScheduler::Next(lane);
    if (waiting_.empty() || under_way_ > 0) return {};
    const auto first = std::min_element(waiting_.begin(), waiting_.end(), [&](auto a, auto b) {
      const auto key = [&](uint32_t task) {
        return tasks_[task].bucket == exec::kNoBucket ? 0 : tasks_[task].needed_by + 1;
      };
      return key(a) < key(b);
    });
    const uint32_t task = *first;
    waiting_.erase(first);
    ++under_way_;
    return {.kind = ActionKind::kRun, .task = task};
  }

 private:
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

// A plan that says whatever the test wants.
class PlanningScheduler final : public RandomScheduler {
 public:
  explicit PlanningScheduler(std::vector<std::vector<BucketSpan>> buckets)
      : buckets_(std::move(buckets)) {}
  Status Plan(const ModelInfo&, PlanSink& sink) noexcept override {
    for (const auto& bucket : buckets_) sink.AddBucket(bucket, 0, stages);
    return {};
  }

 private:
  const std::vector<std::vector<BucketSpan>> buckets_;
};

graph::Graph TwoParameters(int64_t width = kWidth) {
  Net net(FakeOps(), kSamples, {width});
  return net.Finish(net.Apply("b", "shift", {net.Apply("a", "scale", {Net::kX})}));
}

TEST(ExecutorTest, PlansThatDoNotCoverEveryParameterOnceAreRefused) {
  using Span = BucketSpan;
  const std::vector<std::pair<std::vector<std::vector<Span>>, std::string>> cases = {
      {{{Span{0, 0, 0, 3}}}, "0 of 3 elements of 'a.weight'"},
      {{{Span{0, 0, 0, 3}, Span{1, 0, 0, 2}}},
       "a cut of 'a.weight' after 2 elements, which is no multiple of 16"},
      {{{Span{0, 0, 0, 3}}, {Span{0, 0, 0, 3}}, {Span{1, 0, 0, 3}}}, "after 3 of its 3"},
      {{{Span{0, 0, 1, 2}}, {Span{1, 0, 0, 3}}}, "elements 1+2"},
      {{{Span{0, 0, 0, 1}}, {Span{1, 0, 0, 3}}, {Span{0, 0, 1, 2}}}, "a cut of 'b.bias' after 1"},
      {{{Span{2, 0, 0, 3}}}, "parameter 2, which does not exist"},
      {{{}}, "an empty bucket"},
  };
  for (const auto& [buckets, message] : cases) {
    Rig rig;
    const Status status = rig.Make(TwoParameters(), std::make_unique<PlanningScheduler>(buckets));
    EXPECT_THAT(status, FailsWith(StatusCode::kPlugin,
                                  AllOf(HasSubstr(message), HasSubstr("'test_sched'"))));
  }
}

constexpr int64_t kWide = 48;  // three slices of 16

TEST(ExecutorTest, SlicedAndFusedBucketsGiveTheSameBits) {
  const BatchData batch(kWide);
  Rig plain, sliced;
  ASSERT_TRUE(plain.Make(TwoParameters(kWide)).ok());
  const std::vector<std::vector<BucketSpan>> buckets = {{{0, 0, 0, 32}},
                                                        {{0, 0, 32, 16}, {1, 0, 0, kWide}}};
  ASSERT_TRUE(sliced
                  .Make(TwoParameters(kWide), std::make_unique<PlanningScheduler>(buckets),
                        std::make_unique<FakeCommunicator>())
                  .ok());
  ASSERT_TRUE(plain.Step(batch.Step(1)).ok());
  ASSERT_TRUE(sliced.Step(batch.Step(1)).ok());
  EXPECT_EQ(plain.Parameters(), sliced.Parameters());
  EXPECT_EQ(sliced.communicator->submitted.size(), 3u);
}

// Of a bucket that ranks share only the end is padded for them, or the begin of what is cut there.
TEST(ExecutorTest, BucketsThatRanksShareArePaddedOnce) {
  struct Case {
    std::vector<std::vector<BucketSpan>> buckets;
    std::vector<int64_t> offsets, counts;
  };
  const Case cases[] = {{{{{0, 0, 0, kWide}, {1, 0, 0, kWide}}}, {48, 0}, {96}},
                        {{{{0, 0, 0, kWide}, {1, 0, 0, 32}}, {{1, 0, 32, 16}}}, {64, 0}, {96, 32}}};
  for (const auto& [buckets, offsets, counts] : cases) {
    Rig rig;
    rig.options.rank.world_size = 2;
    rig.options.shard_optimizer = true;
    ASSERT_THAT(rig.Make(TwoParameters(kWide), std::make_unique<PlanningScheduler>(buckets),
                         std::make_unique<FakeCommunicator>(2)),
                IsOk());
    const exec::FlatLayout& layout = rig.executor->memory().layout();
    EXPECT_EQ(layout.offset, offsets);
    for (size_t u = 0; u < counts.size(); ++u) EXPECT_EQ(layout.buckets[u].count, counts[u]);
  }
}

TEST(ExecutorTest, SplitSumsGiveTheSameBits) {
  Rig plain, split;
  auto scheduler = std::make_unique<RandomScheduler>(7);
  scheduler->stages = BucketStages::kReduceScatterAllGather;
  ASSERT_TRUE(plain.Make(TangledGraph()).ok());
  ASSERT_TRUE(split.Make(TangledGraph(), std::move(scheduler)).ok());
  EXPECT_EQ(Trained(&split, 3), Trained(&plain, 3));
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
  const auto hook = [&log](HookStage stage, HookScope scope, const char* name) {
    return std::make_unique<RecordingHook>(HookTraits{.stage = stage, .scope = scope}, name, &log);
  };
  Rig rig, plain;
  ASSERT_THAT(rig.Make(TwoParameters(), std::make_unique<RandomScheduler>(),
                       std::make_unique<FakeCommunicator>(),
                       HookList(hook(HookStage::kReduced, HookScope::kGlobal, "norm"),
                                hook(HookStage::kReduced, HookScope::kTensor, "value"),
                                hook(HookStage::kLocal, HookScope::kTensor, "local"))),
              IsOk());
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

}  // namespace
}  // namespace engine::test
