// What every scheduler must hold to. ENGINE_CONFORMANCE_PLUGINS=<library>[:<library>...] judges
// others than those of this build.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/scheduler/scheduler_rig.h"
#include "tests/fakes/allocation_count.h"

namespace engine::test {
namespace {

class SchedulerConformance : public testing::TestWithParam<std::string> {};

TEST_P(SchedulerConformance, DescribesItself) {
  auto plugin = PluginUnderTest::Load(GetParam());
  ASSERT_TRUE(plugin.ok()) << plugin.status().message();
  EXPECT_EQ(plugin->header().kind, PluginKind::kScheduler);
  EXPECT_THAT(GetParam(), testing::EndsWith("/libengine_" + plugin->name() + ".so"));
  EXPECT_NE(plugin->header().doc.view(), "");
}

TEST_P(SchedulerConformance, RunsEveryTaskOnceAndOnlyWhenItIsReady) {
  for (uint32_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(GetParam(), seed);
    ASSERT_TRUE(rig.ok());
    Trace trace;
    for (uint32_t step = 1; step <= 3; ++step) {
      ASSERT_EQ(rig.executor->RunStep(step, seed + step, &trace), "") << "in step " << step;
    }
  }
}

TEST_P(SchedulerConformance, TakesTheSameOrderInEveryStep) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(GetParam(), seed);
    ASSERT_TRUE(rig.ok());
    Trace first, later;
    ASSERT_EQ(rig.executor->RunStep(1, seed, &first), "");
    for (uint32_t step = 2; step <= 4; ++step) {
      ASSERT_EQ(rig.executor->RunStep(step, seed, &later), "");
      ASSERT_TRUE(first == later) << "step " << step << " differs from step 1";
    }
  }
}

TEST_P(SchedulerConformance, TwoInstancesDecideAlike) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig one = SchedulerRig::Random(GetParam(), seed);
    SchedulerRig other = SchedulerRig::Random(GetParam(), seed);
    ASSERT_TRUE(one.ok() && other.ok());
    Trace trace_of_one, trace_of_other;
    ASSERT_EQ(one.executor->RunStep(1, seed, &trace_of_one), "");
    ASSERT_EQ(other.executor->RunStep(1, seed, &trace_of_other), "");
    ASSERT_TRUE(trace_of_one == trace_of_other);
  }
}

// Transfers end at different times on each rank, but a communicator whose traits say `ordered`
// needs them to start in one order everywhere.
TEST_P(SchedulerConformance, RanksStartTransfersInOneOrder) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rank0 = SchedulerRig::Random(GetParam(), seed);
    SchedulerRig rank1 = SchedulerRig::Random(GetParam(), seed);
    ASSERT_TRUE(rank0.ok() && rank1.ok());
    Trace trace0, trace1;
    for (uint32_t step = 1; step <= 3; ++step) {
      ASSERT_EQ(rank0.executor->RunStep(step, seed + 1000 * step, &trace0), "");
      ASSERT_EQ(rank1.executor->RunStep(step, seed + 1000 * step + 500, &trace1), "");
      ASSERT_EQ(trace0.io, trace1.io) << "in step " << step;
    }
  }
}

TEST_P(SchedulerConformance, DoesNotAllocateAfterTheFirstStep) {
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig rig = SchedulerRig::Random(GetParam(), seed);
    ASSERT_TRUE(rig.ok());
    Trace trace;
    ASSERT_EQ(rig.executor->RunStep(1, seed, &trace), "");
    const uint64_t of_first_step = rig.executor->allocations();
    for (uint32_t step = 2; step <= 4; ++step) {
      ASSERT_EQ(rig.executor->RunStep(step, seed + step, &trace), "");
    }
    ASSERT_EQ(rig.executor->allocations(), of_first_step);
  }
}

TEST_P(SchedulerConformance, ForgetsPendingTasksAfterAnError) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SchedulerRig failing = SchedulerRig::Random(GetParam(), seed);
    SchedulerRig fresh = SchedulerRig::Random(GetParam(), seed);
    ASSERT_TRUE(failing.ok() && fresh.ok());
    Trace trace, expected;
    const size_t stop_after = 1 + seed % failing.graph.tasks().size();
    ASSERT_EQ(failing.executor->RunStep(1, seed, &trace, stop_after), "");
    ASSERT_EQ(failing.executor->RunStep(2, seed, &trace), "");
    ASSERT_EQ(fresh.executor->RunStep(2, seed, &expected), "");
    ASSERT_TRUE(trace == expected);
  }
}

TEST_P(SchedulerConformance, PlansNothingForAModelWithoutTrainableParameters) {
  ModelSketch model;
  model.layers.resize(1);
  SchedulerRig rig(GetParam(), model, nullptr);
  ASSERT_TRUE(rig.ok());
  Trace trace;
  EXPECT_EQ(rig.executor->RunStep(1, 1, &trace), "");
  EXPECT_EQ(trace.io.size(), 1u);  // the statistics
}

INSTANTIATE_TEST_SUITE_P(Plugins, SchedulerConformance,
                         testing::ValuesIn(PluginPaths({"fifo_sched", "priority_sched"})));

// Without this, DoesNotAllocateAfterTheFirstStep could pass because it is blind.
TEST(AllocationCounter, SeesThePluginsAllocations) {
  auto scheduler = MakeScheduler(ENGINE_TEST_PLUGIN_DIR "/libengine_fifo_sched.so");
  ASSERT_TRUE(scheduler);
  const std::vector<TaskInfo> tasks(1);
  const AllocationCounter counter;
  ASSERT_TRUE(scheduler->Begin(tasks).ok());
  EXPECT_GE(counter.count(), 1u);
}

}  // namespace
}  // namespace engine::test
