// When the schedulers with a fixed order start transfers, and what overlaps with what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/scheduler/event_player.h"

namespace engine::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Three layers with one unit each; unit0 is that of the last layer.
ModelSketch ThreeLayers() {
  return ModelSketch::Chain({1000, 1000, 1000});
}
const OptionValues::Overrides kEachAlone = {{"fuse_bytes", "0"}};
const OptionValues::Overrides kGroups = {{"group_bytes", "0"}};

// ---- sequential_sched

TEST(SequentialSched, OverlapsNothing) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(SchedulerPath("sequential_sched"), seed);
    ASSERT_TRUE(rig.ok());
    Trace trace;
    ASSERT_EQ(rig.executor->Run({.timing_seed = seed}, &trace), "");
    const auto& tasks = rig.graph.tasks();
    const auto of_tail = [&](const TaskInfo& task) {
      return task.kind == TaskKind::kTransfer && !rig.graph.is_head(task.id);
    };
    const auto tail = static_cast<size_t>(std::count_if(tasks.begin(), tasks.end(), of_tail));
    size_t transfers_before = 0;
    for (const Started& started : trace.all) {
      const TaskInfo& task = tasks[started.task];
      if (rig.graph.is_head(started.task)) {
        if (task.kind == TaskKind::kTransfer) continue;  // a pull with which a step opens
        ASSERT_EQ(transfers_before, started.step * tail)
            << task.name << " was started beside transfers of another step";
      }
      transfers_before += task.kind == TaskKind::kTransfer;
      if (task.kind != TaskKind::kTransfer) continue;
      ASSERT_TRUE(started.backward_ended) << task.name << " was started before backward ended";
    }
  }
}

TEST(SequentialSched, HoldsTheNextForwardPassUntilTheLastUpdateIsDone) {
  SchedulerRig rig(SchedulerPath("sequential_sched"), ThreeLayers());
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"statistics", "unit0"});
  EXPECT_THAT(play.TakeIo(), IsEmpty());
  play.Send(EventKind::kBackwardEnd);
  EXPECT_THAT(play.TakeIo(), ElementsAre("statistics", "unit0"));
  play.Done({"statistics", "unit0"});
  play.Ready({"update0", "forward0"});
  EXPECT_THAT(play.TakeCompute(), ElementsAre("update0"));
  play.Done({"update0"});
  EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0"));
}

// ---- fifo_sched

TEST(FifoSched, SendsInReadyOrderWhateverArrivesFirst) {
  SchedulerRig rig(SchedulerPath("fifo_sched"), ThreeLayers(), nullptr, kEachAlone);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"unit1", "unit0"});
  EXPECT_THAT(play.TakeIo(), IsEmpty());  // the statistics are first
  play.Ready({"statistics"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("statistics", "unit0", "unit1"));
  play.Ready({"unit2"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit2"));
}

TEST(FifoSched, GathersInTheOrderOfUnits) {
  ModelSketch model = ThreeLayers();
  model.sharded = true;
  SchedulerRig rig(SchedulerPath("fifo_sched"), model, nullptr, kEachAlone);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"statistics", "scatter0", "gather1", "scatter1", "gather0", "scatter2", "gather2"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("statistics", "scatter0", "scatter1", "scatter2",
                                         "gather0", "gather1", "gather2"));
}

// The point of not waiting for the end of backward.
TEST(FifoSched, SendsDuringBackward) {
  SchedulerRig rig(SchedulerPath("fifo_sched"), ThreeLayers(), nullptr, kEachAlone);
  ASSERT_TRUE(rig.ok());
  Trace trace;
  ASSERT_EQ(rig.executor->Run({.timing_seed = 1}, &trace), "");
  EXPECT_TRUE(std::any_of(trace.all.begin(), trace.all.end(), [&](const Started& started) {
    return rig.graph.tasks()[started.task].unit == 0 && !started.backward_ended;
  }));
}

// ---- dear_sched

class Dear : public testing::TestWithParam<bool> {
 protected:
  static ModelSketch Model() {
    ModelSketch model = ThreeLayers();
    model.sharded = GetParam();
    return model;
  }
};

TEST_P(Dear, GathersOneGroupAheadOfTheForwardPass) {
  SchedulerRig rig(SchedulerPath("dear_sched"), Model(), nullptr, kGroups);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    play.Send(EventKind::kStepBegin);
    play.Ready({"statistics", "scatter1", "gather0", "scatter0"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("statistics", "scatter0", "scatter1"));
    play.Ready({"gather1", "scatter2", "gather2"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("scatter2", "gather2"));  // of the first layer
    play.Send(EventKind::kStepBegin);
    EXPECT_THAT(play.TakeIo(), IsEmpty());
    play.Ready({"forward0"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("gather1"));
    play.Ready({"forward1"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("gather0"));
    play.Ready({"forward2"});
    EXPECT_THAT(play.TakeIo(), IsEmpty());
    EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0", "forward1", "forward2"));
  }
}

// With two groups the forward task that released the last gather is the one that releases it again.
TEST_P(Dear, HoldsBackInEveryStep) {
  ModelSketch model = ModelSketch::Chain({1000, 1000});
  model.sharded = GetParam();
  SchedulerRig rig(SchedulerPath("dear_sched"), model, nullptr, kGroups);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  for (int step = 1; step <= 3; ++step) {
    play.Ready({"statistics", "scatter0", "scatter1", "gather0", "gather1"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("statistics", "scatter0", "scatter1", "gather1"));
    play.Ready({"forward0"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("gather0"));
    play.Ready({"forward1"});
    EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0", "forward1"));
  }
}

TEST_P(Dear, HoldsNothingBackFromAFlush) {
  SchedulerRig rig(SchedulerPath("dear_sched"), Model(), nullptr, kGroups);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  const std::vector<std::string> scatters = {"statistics", "scatter0", "scatter1", "scatter2"};
  play.Ready(scatters);
  play.Ready({"gather0", "gather1"});
  EXPECT_EQ(play.TakeIo(), scatters);
  play.Send(EventKind::kFlush);
  play.Ready({"gather2"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("gather2", "gather1", "gather0"));
  // But from the next forward pass.
  play.Send(EventKind::kStepBegin);
  play.Ready(scatters);
  play.Ready({"gather0", "gather1", "gather2"});
  EXPECT_EQ(play.TakeIo().back(), "gather2");
}

INSTANTIATE_TEST_SUITE_P(Chains, Dear, testing::Bool());

TEST(DearSched, HoldsNothingBackWhenUpdatesWaitForAllGradients) {
  ModelSketch model = ThreeLayers();
  model.global_hook = true;
  SchedulerRig rig(SchedulerPath("dear_sched"), model, nullptr, kGroups);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"statistics", "scatter0", "scatter1", "scatter2", "gather0", "gather1", "gather2"});
  EXPECT_EQ(play.TakeIo().size(), 7u);
}

// ---- all

// What a barrier would forbid: a forward task of the next step runs while an update is missing.
TEST(ExecutorModel, OverlapsSteps) {
  for (const char* name : {"fifo_sched", "priority_sched", "dear_sched"}) {
    size_t overlaps = 0;
    for (uint32_t seed = 1; seed <= 50; ++seed) {
      SchedulerRig rig = SchedulerRig::Random(SchedulerPath(name), seed);
      ASSERT_TRUE(rig.ok());
      Trace trace;
      ASSERT_EQ(rig.executor->Run({.timing_seed = seed}, &trace), "");
      uint32_t newest = 0;
      for (const Started& started : trace.all) {
        overlaps += started.step < newest;
        newest = std::max(newest, started.step);
      }
    }
    EXPECT_GT(overlaps, 100u) << name;
  }
}

}  // namespace
}  // namespace engine::test
