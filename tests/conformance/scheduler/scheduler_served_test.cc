// Buckets that are pushed to servers and pulled from them: what each scheduler of this
// repository promises.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/scheduler/scheduler_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

// A server that orders by priority must not turn another order into one by need.
TEST(ServedPriorities, AreThoseOfASchedulerThatOrdersByNeed) {
  ModelSketch model = ModelSketch::Chain({100000, 1000, 200000, 1000});
  model.served = true;
  for (const std::string name :
       {"sequential_sched", "fifo_sched", "priority_sched", "dear_sched"}) {
    SchedulerRig rig(MakeScheduler(name), model);
    for (const exec::BucketLayout& bucket : rig.graph.buckets()) {
      uint32_t first = UINT32_MAX;
      for (const BucketSpan& span : bucket.spans) {
        first = std::min(first, rig.graph.model_info().parameters[span.parameter].first_use);
      }
      EXPECT_EQ(bucket.priority, name == "priority_sched" ? -static_cast<int32_t>(first) : 0);
    }
  }
}

// ---- What each of them does, in a chain of three layers with a bucket each; bucket0 is needed last.

EventPlayer ThreeServed(const char* name, const OptionValues::Overrides& options,
                        std::vector<size_t> tables = {}) {
  ModelSketch model = ThreeLayers();
  model.served = true;
  model.tables = std::move(tables);
  return EventPlayer(name, model, options);
}

TEST(SequentialSched, PullsWhenAllIsPushed) {
  // Its buckets are of 4 MiB.
  ModelSketch model = ModelSketch::Chain({1 << 20, 1 << 20});
  model.served = true;
  EventPlayer play("sequential_sched", model);
  EXPECT_THAT(play.Ready({"statistics", "push0", "push1"}), IsEmpty());
  EXPECT_THAT(play.Send(EventKind::kBackwardEnd), ElementsAre("statistics", "push0", "push1"));
  EXPECT_THAT(play.Done({"statistics", "push0"}), IsEmpty());
  EXPECT_THAT(play.Ready({"pull0"}), IsEmpty());
  EXPECT_THAT(play.Done({"push1"}), ElementsAre("pull0"));
  EXPECT_THAT(play.Ready({"pull1"}), ElementsAre("pull1"));
  play.Done({"pull1"});
  play.Ready({"forward0"});
  EXPECT_THAT(play.TakeCompute(), IsEmpty());
  play.Done({"pull0"});
  EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0"));
}

TEST(FifoSched, PushesInReadyOrderAndPullsAtOnce) {
  EventPlayer play = ThreeServed("fifo_sched", {{"fuse_bytes", "0"}});
  EXPECT_THAT(play.Ready({"statistics", "push1"}), ElementsAre("statistics"));  // push0 is first
  EXPECT_THAT(play.Ready({"push0"}), ElementsAre("push0", "push1"));
  play.Done({"push1", "push0"});
  EXPECT_THAT(play.Ready({"pull1", "pull0"}), ElementsAre("pull1", "pull0"));
}

TEST(PrioritySched, PullsTakeNoCreditFromPushes) {
  EventPlayer play = ThreeServed("priority_sched", {{"fuse_bytes", "0"}, {"credit_bytes", "4096"}});
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    EXPECT_THAT(play.Ready({"push0", "push1"}), ElementsAre("push1"));
    play.Tell(EventKind::kTaskDone, {"push1"});
    EXPECT_THAT(play.Ready({"pull1", "push2"}), ElementsAre("pull1", "push2"));  // not push0
    EXPECT_THAT(play.Done({"pull1"}), IsEmpty());
    play.Tell(EventKind::kTaskDone, {"push2"});
    EXPECT_THAT(play.Ready({"pull2"}), ElementsAre("pull2", "push0"));
    play.Done({"push0"});
    EXPECT_THAT(play.Ready({"pull0"}), ElementsAre("pull0"));
    play.Done({"pull0", "pull2"});
  }
}

// Rows that a batch reads, while everything of the step before is still pulled.
TEST(Opening, PullsOfRowsAreStartedAtOnce) {
  for (const auto& [name, option] :
       {std::pair("fifo_sched", "fuse_bytes"), std::pair("priority_sched", "fuse_bytes"),
        std::pair("dear_sched", "group_bytes")}) {
    EventPlayer play = ThreeServed(name, {{option, "0"}}, {0});
    for (int step = 1; step <= 2; ++step) {
      play.Send(EventKind::kStepBegin);
      EXPECT_THAT(play.Ready({"pull2"}), ElementsAre("pull2"));
      play.Done({"pull2"});
      play.Tell(EventKind::kTaskReady, {"statistics", "push0", "push1", "push2"});
      EXPECT_THAT(play.Send(EventKind::kBackwardEnd), testing::SizeIs(testing::Ge(2)));
      play.Done({"statistics", "push0", "push1", "push2"});
      play.Ready({"pull0", "pull1"});
      play.Send(EventKind::kFlush);
      play.Done({"pull0", "pull1"});
    }
  }
}

}  // namespace
}  // namespace engine::test
