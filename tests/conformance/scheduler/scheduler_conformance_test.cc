// What every scheduler must hold to. ENGINE_CONFORMANCE_PLUGINS=<library>[:<library>...] judges
// others than those of this build.
#include <gtest/gtest.h>

#include "tests/conformance/scheduler/scheduler_rig.h"
#include "tools/conform/allocation_count.h"

namespace engine::test {
namespace {

class SchedulerConformance : public testing::TestWithParam<std::string> {};

TEST_P(SchedulerConformance, DescribesItself) {
  ExpectDescribed(GetParam(), PluginKind::kScheduler);
}

// Steps overlap, batches come early or late, flushes at any moment: no task is lost, started early
// or twice, and never are both lanes held while nothing runs.
TEST_P(SchedulerConformance, RunsEveryTaskOnceAndOnlyWhenItIsReady) {
  for (uint32_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(GetParam(), seed);
    for (uint32_t run = 0; run < 2; ++run) {
      const Trace trace = rig.Run({.timing_seed = seed + run, .flush_seed = seed + run});
      ASSERT_EQ(trace.compute.size() + trace.io.size(), 4 * rig.graph.tasks().size());
    }
  }
}

TEST_P(SchedulerConformance, TakesTheSameOrderInEveryStep) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(GetParam(), seed);
    const Trace trace = rig.Run({.timing_seed = seed, .flush_always = true});
    for (uint32_t step = 1; step < 4; ++step) {
      ASSERT_EQ(Trace::OfStep(trace.compute, step), Trace::OfStep(trace.compute, 0));
      ASSERT_EQ(Trace::OfStep(trace.io, step), Trace::OfStep(trace.io, 0));
    }
  }
}

TEST_P(SchedulerConformance, TwoInstancesDecideAlike) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig one = SchedulerRig::Random(GetParam(), seed);
    SchedulerRig other = SchedulerRig::Random(GetParam(), seed);
    ASSERT_TRUE(one.Run({.timing_seed = seed}) == other.Run({.timing_seed = seed}));
  }
}

// Transfers end at different times on each rank, but a communicator whose traits say `ordered`
// needs them to start in one order everywhere: because the order follows from the plan, or because
// the other ranks follow rank 0.
TEST_P(SchedulerConformance, RanksStartTransfersInOneOrder) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rank0 = SchedulerRig::Random(GetParam(), seed);
    SchedulerRig rank1 = SchedulerRig::Random(GetParam(), seed);
    if (rank0.graph.model_info().communicator.ordered == 0) continue;
    const Trace trace0 = rank0.Run({.timing_seed = seed});
    const bool leads = rank1.scheduler->traits().order == TransferOrder::kLeader;
    const Trace trace1 =
        rank1.Run({.timing_seed = seed + 5000, .tickets = leads ? &trace0.io : nullptr});
    ASSERT_EQ(trace0.io, trace1.io);
    ASSERT_EQ(trace0.compute.size(), trace1.compute.size());
  }
}

TEST_P(SchedulerConformance, DoesNotAllocateAfterTheFirstStep) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(GetParam(), seed);
    rig.Run({.steps = 1, .timing_seed = seed});
    const uint64_t of_first_step = rig.executor->allocations();
    rig.Run({.steps = 6, .timing_seed = seed + 1});
    ASSERT_EQ(rig.executor->allocations(), of_first_step);
  }
}

TEST_P(SchedulerConformance, ForgetsPendingTasksAfterAnError) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig failing = SchedulerRig::Random(GetParam(), seed);
    SchedulerRig fresh = SchedulerRig::Random(GetParam(), seed);
    const size_t stop_after = 1 + seed * 7919 % (3 * failing.graph.tasks().size());
    failing.Run({.timing_seed = seed, .stop_after = stop_after});
    ASSERT_TRUE(failing.Run({.timing_seed = seed + 1}) == fresh.Run({.timing_seed = seed + 1}));
  }
}

TEST_P(SchedulerConformance, PlansNothingForAModelWithoutTrainableParameters) {
  ModelSketch model;
  model.layers.resize(1);
  for (const bool global_hook : {false, true}) {
    model.global_hook = global_hook;
    EXPECT_EQ(SchedulerRig(GetParam(), model).Run({.steps = 3}).io.size(), 3u);  // the statistics
  }
}

INSTANTIATE_TEST_SUITE_P(Plugins, SchedulerConformance,
                         testing::ValuesIn(PluginPaths({"sequential_sched", "fifo_sched",
                                                        "priority_sched", "dear_sched"})));

// Without this, DoesNotAllocateAfterTheFirstStep could pass because it is blind.
TEST(AllocationCounter, SeesThePluginsAllocations) {
  const auto scheduler = CreateFrom<Scheduler>(PluginPath("fifo_sched"));
  const std::vector<TaskInfo> tasks(1);
  const AllocationCounter counter;
  ASSERT_TRUE(scheduler->Begin(tasks).ok());
  EXPECT_GE(counter.count(), 1u);
}

}  // namespace
}  // namespace engine::test
