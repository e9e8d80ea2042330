// When priority_sched starts transfers: order, credit, and how long an urgent gradient waits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/conformance/scheduler/event_player.h"

namespace engine::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Three layers with one unit each; unit0 is that of the last layer.
ModelSketch ThreeLayers() {
  return ModelSketch::Chain({1000, 1000, 1000});
}

// Units of 4000 bytes, two of which may be under way.
SchedulerRig PriorityRig(const ModelSketch& model) {
  return SchedulerRig(SchedulerPath("priority_sched"), model, nullptr,
                      {{"fuse_bytes", "0"}, {"slice_bytes", "4000"}, {"credit_bytes", "8000"}});
}

TEST(PrioritySched, SendsFirstWhatIsNeededFirst) {
  SchedulerRig rig = PriorityRig(ModelSketch::Chain({1000, 1000, 1000, 1000}));
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    play.Ready({"unit1", "unit0", "unit2"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("unit2", "unit1"));
    play.Ready({"unit3"});
    EXPECT_THAT(play.TakeIo(), IsEmpty());
    play.Ready({"statistics"});  // they do not wait for credit
    EXPECT_THAT(play.TakeIo(), ElementsAre("statistics"));
    play.Done({"statistics"});
    EXPECT_THAT(play.TakeIo(), IsEmpty());
    play.Done({"unit1"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("unit3"));
    play.Done({"unit3", "unit2"});
    EXPECT_THAT(play.TakeIo(), ElementsAre("unit0"));
    play.Done({"unit0"});
  }
}

TEST(PrioritySched, NeverSkipsTheHeadForASmallerOne) {
  SchedulerRig rig = PriorityRig(ModelSketch::Chain({1000, 10, 1000}));  // unit1 is small
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"unit0"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit0"));
  play.Ready({"unit1"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit1"));
  play.Ready({"unit2"});  // 4000 + 40 + 4000 bytes are too many
  EXPECT_THAT(play.TakeIo(), IsEmpty());
  play.Done({"unit1"});
  play.Ready({"unit1"});  // of less need than unit2, but it would fit
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit2"));
}

TEST(PrioritySched, SendsAloneWhatIsLargerThanTheCredit) {
  SchedulerRig rig(SchedulerPath("priority_sched"), ThreeLayers(), nullptr,
                   {{"fuse_bytes", "0"}, {"credit_bytes", "100"}});
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"unit0", "unit1"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit1"));
  play.Done({"unit1"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit0"));
}

// On other ranks than 0, which are not asked but told.
TEST(PrioritySched, CountsWhatRank0Started) {
  SchedulerRig rig = PriorityRig(ModelSketch::Chain({1000, 1000, 1000, 1000}));
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"unit0", "unit1", "unit2", "unit3"});
  play.Started({"unit0", "unit3"});
  EXPECT_THAT(play.TakeIo(), IsEmpty());  // their bytes are the credit
  play.Done({"unit0"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit2"));
}

TEST(PrioritySched, SendsInReadyOrderWhenUpdatesWaitForAllGradients) {
  ModelSketch model = ThreeLayers();
  model.global_hook = true;
  SchedulerRig rig = PriorityRig(model);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"unit2", "unit0", "unit1"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("unit0", "unit1"));
}

TEST(PrioritySched, GathersByNeedWhenShardedUpdatesWaitForAllGradients) {
  ModelSketch model = ThreeLayers();
  model.global_hook = model.sharded = true;
  SchedulerRig rig = PriorityRig(model);
  ASSERT_TRUE(rig.ok());
  EventPlayer play(rig);
  play.Ready({"scatter2", "scatter0", "scatter1"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("scatter0", "scatter1"));
  play.Done({"scatter0", "scatter1"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("scatter2"));
  play.Done({"scatter2"});
  play.Ready({"gather0", "gather1", "gather2"});
  EXPECT_THAT(play.TakeIo(), ElementsAre("gather2", "gather1"));
}

// 64 KiB that the next forward pass needs first become ready while 8 MiB that it needs later are
// pending. The link sends one transfer after another: how many bytes leave before the 64 KiB?
TEST(PrioritySched, LetsAnUrgentGradientWaitForNoMoreThanCreditAndOneSlice) {
  constexpr uint64_t kUrgent = 64 << 10, kSlice = 256 << 10, kCredit = 512 << 10;
  for (size_t slices_before = 0; slices_before <= 32; ++slices_before) {
    SCOPED_TRACE(std::to_string(slices_before) + " slices left before");
    SchedulerRig rig(SchedulerPath("priority_sched"),
                     ModelSketch::Chain({kUrgent / 4, (8 << 20) / 4}));
    ASSERT_TRUE(rig.ok());
    ASSERT_EQ(rig.plan.units().size(), 33u);
    ASSERT_EQ(rig.plan.units().back().size_bytes(), kUrgent);
    std::deque<uint32_t> link;
    const auto start = [&] {
      for (Action action = rig.scheduler->Next(Lane::kIo); action.kind == ActionKind::kRun;
           action = rig.scheduler->Next(Lane::kIo)) {
        link.push_back(action.task);
      }
    };
    const auto leave = [&] {
      rig.scheduler->On({.kind = EventKind::kTaskDone, .task = link.front()});
      link.pop_front();
      start();
    };
    const auto offer = [&](uint32_t unit) {
      rig.scheduler->On(
          {.kind = EventKind::kTaskReady, .task = rig.graph.Find("unit" + std::to_string(unit))});
    };
    for (uint32_t unit = 0; unit < 32; ++unit) offer(unit);
    start();
    for (size_t i = 0; i < slices_before; ++i) leave();
    offer(32);
    start();
    const uint32_t urgent = rig.graph.Find("unit32");
    uint64_t waited = 0;
    while (!link.empty() && link.front() != urgent) {
      waited += rig.graph.tasks()[link.front()].size_bytes;
      leave();
    }
    ASSERT_FALSE(link.empty());
    EXPECT_LE(waited, kCredit + kSlice);
    EXPECT_GE(waited, slices_before < 28 ? kCredit - kSlice : 0);  // the link is kept busy
  }
}

}  // namespace
}  // namespace engine::test
