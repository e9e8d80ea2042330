// When the schedulers with a fixed order start transfers, and what overlaps with what.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/scheduler/scheduler_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

const OptionValues::Overrides kEachAlone = {{"fuse_bytes", "0"}};
const OptionValues::Overrides kGroups = {{"group_bytes", "0"}};

// ---- sequential_sched

TEST(SequentialSched, OverlapsNothing) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(MakeScheduler("sequential_sched"), seed);
    const Trace trace = rig.Run({.timing_seed = seed});
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
            << std::string_view(task.name) << " was started beside transfers of another step";
      }
      if (task.kind != TaskKind::kTransfer) continue;
      ++transfers_before;
      ASSERT_TRUE(started.backward_ended)
          << std::string_view(task.name) << " was started before backward ended";
    }
  }
}

TEST(SequentialSched, HoldsTheNextForwardPassUntilTheLastUpdateIsDone) {
  EventPlayer play("sequential_sched", ThreeLayers());
  EXPECT_THAT(play.Ready({"statistics", "bucket0"}), IsEmpty());
  EXPECT_THAT(play.Send(EventKind::kBackwardEnd), ElementsAre("statistics", "bucket0"));
  play.Done({"statistics", "bucket0"});
  play.Ready({"update0", "forward0"});
  EXPECT_THAT(play.TakeCompute(), ElementsAre("update0"));
  play.Done({"update0"});
  EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0"));
}

// ---- fifo_sched

TEST(FifoSched, SendsInReadyOrderWhateverArrivesFirst) {
  EventPlayer play("fifo_sched", ThreeLayers(), kEachAlone);
  EXPECT_THAT(play.Ready({"bucket1", "bucket0"}), IsEmpty());  // the statistics are first
  EXPECT_THAT(play.Ready({"statistics"}), ElementsAre("statistics", "bucket0", "bucket1"));
  EXPECT_THAT(play.Ready({"bucket2"}), ElementsAre("bucket2"));
}

TEST(FifoSched, GathersInTheOrderOfBuckets) {
  ModelSketch model = ThreeLayers();
  model.sharded = true;
  EventPlayer play("fifo_sched", model, kEachAlone);
  EXPECT_THAT(play.Ready({"statistics", "scatter0", "gather1", "scatter1", "gather0", "scatter2",
                          "gather2"}),
              ElementsAre("statistics", "scatter0", "scatter1", "scatter2", "gather0", "gather1",
                          "gather2"));
}

// The point of not waiting for the end of backward.
TEST(FifoSched, SendsDuringBackward) {
  SchedulerRig rig(MakeScheduler("fifo_sched", kEachAlone), ThreeLayers());
  const Trace trace = rig.Run({.timing_seed = 1});
  EXPECT_TRUE(std::any_of(trace.all.begin(), trace.all.end(), [&](const Started& started) {
    return rig.graph.tasks()[started.task].bucket == 0 && !started.backward_ended;
  }));
}

// ---- dear_sched

// The two halves of a bucket's way: gradients that are summed and gathered, parameters that are
// updated in parts and gathered, or gradients that are pushed and parameters that are pulled.
struct Halves {
  bool sharded, served;
  const char *out, *back;
};

class Dear : public testing::TestWithParam<Halves> {
 protected:
  static EventPlayer Play(ModelSketch model) {
    model.sharded = GetParam().sharded;
    model.served = GetParam().served;
    return EventPlayer("dear_sched", model, kGroups);
  }
  static std::string Out(int bucket) { return GetParam().out + std::to_string(bucket); }
  static std::string Back(int bucket) { return GetParam().back + std::to_string(bucket); }
};

TEST_P(Dear, BringsBackOneGroupAheadOfTheForwardPass) {
  EventPlayer play = Play(ThreeLayers());
  for (int step = 1; step <= 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    play.Send(EventKind::kStepBegin);
    EXPECT_THAT(play.Ready({"statistics", Out(1), Back(0), Out(0)}),
                ElementsAre("statistics", Out(0), Out(1)));
    EXPECT_THAT(play.Ready({Back(1), Out(2), Back(2)}),
                ElementsAre(Out(2), Back(2)));  // of the first layer
    EXPECT_THAT(play.Send(EventKind::kStepBegin), IsEmpty());
    EXPECT_THAT(play.Ready({"forward0"}), ElementsAre(Back(1)));
    EXPECT_THAT(play.Ready({"forward1"}), ElementsAre(Back(0)));
    EXPECT_THAT(play.Ready({"forward2"}), IsEmpty());
    EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0", "forward1", "forward2"));
  }
}

// With two groups the forward task that released the last half is the one that releases it again.
TEST_P(Dear, HoldsBackInEveryStep) {
  EventPlayer play = Play(ModelSketch::Chain({1000, 1000}));
  for (int step = 1; step <= 3; ++step) {
    EXPECT_THAT(play.Ready({"statistics", Out(0), Out(1), Back(0), Back(1)}),
                ElementsAre("statistics", Out(0), Out(1), Back(1)));
    EXPECT_THAT(play.Ready({"forward0"}), ElementsAre(Back(0)));
    play.Ready({"forward1"});
    EXPECT_THAT(play.TakeCompute(), ElementsAre("forward0", "forward1"));
  }
}

TEST_P(Dear, HoldsNothingBackFromAFlush) {
  EventPlayer play = Play(ThreeLayers());
  const EventPlayer::Names all_out = {"statistics", Out(0), Out(1), Out(2)};
  EXPECT_EQ(play.Ready(all_out), all_out);
  EXPECT_THAT(play.Ready({Back(0), Back(1)}), IsEmpty());
  play.Send(EventKind::kFlush);
  EXPECT_THAT(play.Ready({Back(2)}), ElementsAre(Back(2), Back(1), Back(0)));
  // But from the next forward pass.
  play.Send(EventKind::kStepBegin);
  play.Ready(all_out);
  EXPECT_THAT(play.Ready({Back(0), Back(1), Back(2)}), ElementsAre(Back(2)));
}

INSTANTIATE_TEST_SUITE_P(Chains, Dear,
                         testing::Values(Halves{false, false, "scatter", "gather"},
                                         Halves{true, false, "scatter", "gather"},
                                         Halves{false, true, "push", "pull"}));

TEST(DearSched, HoldsNothingBackWhenUpdatesWaitForAllGradients) {
  ModelSketch model = ThreeLayers();
  model.global_hook = true;
  EventPlayer play("dear_sched", model, kGroups);
  EXPECT_THAT(play.Ready({"statistics", "scatter0", "scatter1", "scatter2", "gather0", "gather1",
                          "gather2"}),
              testing::SizeIs(7));
}

// ---- all

// What a barrier would forbid: a forward task of the next step runs while an update is missing.
TEST(ExecutorModel, OverlapsSteps) {
  for (const char* name : {"fifo_sched", "priority_sched", "dear_sched"}) {
    size_t overlaps = 0;
    for (uint32_t seed = 1; seed <= 50; ++seed) {
      SchedulerRig rig = SchedulerRig::Random(MakeScheduler(name), seed);
      uint32_t newest = 0;
      for (const Started& started : rig.Run({.timing_seed = seed}).all) {
        overlaps += started.step < newest;
        newest = std::max(newest, started.step);
      }
    }
    EXPECT_GT(overlaps, 100u) << name;
  }
}

}  // namespace
}  // namespace engine::test
