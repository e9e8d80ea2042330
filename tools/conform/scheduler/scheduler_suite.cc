// What every scheduler must hold to.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tools/conform/contract.h"
#include "tools/conform/scheduler/served_ranks.h"
#include "tools/conform/subject.h"

namespace engine::conform {
namespace {

constexpr char kHeader[] = "engine/scheduler.h";

SchedulerRig Random(uint32_t seed) {
  return SchedulerRig::Random(Make<Scheduler>(), seed);
}

// Steps overlap, batches come early or late, flushes at any moment: no task is lost, started early
// or twice, and never are both lanes held while nothing runs.
TEST(Scheduler, RunsEveryTaskOnceAndOnlyWhenItIsReady) {
  MUST(
      "In every step each task is run once, when it is ready; while nothing runs, a lane with a "
      "ready task is not held.");
  for (const uint32_t seed : Seeds(500)) {
    SchedulerRig rig = Random(seed);
    for (uint32_t run = 0; run < 2; ++run) {
      const Trace trace = rig.Run({.timing_seed = seed + run, .flush_seed = seed + run});
      ASSERT_EQ(trace.compute.size() + trace.io.size(), 4 * rig.graph.tasks().size());
    }
  }
}

TEST(Scheduler, TakesTheSameOrderInEveryStep) {
  SHOULD("Steps with the same events should have the same order.");
  for (const uint32_t seed : Seeds(200)) {
    SchedulerRig rig = Random(seed);
    const Trace trace = rig.Run({.timing_seed = seed, .flush_always = true});
    for (uint32_t step = 1; step < 4; ++step) {
      ASSERT_EQ(Trace::OfStep(trace.compute, step), Trace::OfStep(trace.compute, 0));
      ASSERT_EQ(Trace::OfStep(trace.io, step), Trace::OfStep(trace.io, 0));
    }
  }
}

TEST(Scheduler, TwoInstancesDecideAlike) {
  MUST("A scheduler is a deterministic state machine: events in, actions out.");
  for (const uint32_t seed : Seeds(200)) {
    SchedulerRig one = Random(seed), other = Random(seed);
    ASSERT_TRUE(one.Run({.timing_seed = seed}) == other.Run({.timing_seed = seed}));
  }
}

// Transfers end at different times on each rank, but a communicator whose traits say `ordered`
// needs them to start in one order everywhere: because the order follows from the plan, or because
// the other ranks follow rank 0.
TEST(Scheduler, RanksStartTransfersInOneOrder) {
  MUST(
      "kStatic: the order of transfers follows from the plan alone, whenever they end; kLeader: "
      "ranks but 0 take kTaskStarted as if Next had answered it.");
  for (const uint32_t seed : Seeds(500)) {
    SchedulerRig rank0 = Random(seed), rank1 = Random(seed);
    if (rank0.graph.model_info().communicator.ordered == 0) continue;
    const Trace trace0 = rank0.Run({.timing_seed = seed});
    const bool leads = rank1.scheduler->traits().order == TransferOrder::kLeader;
    const Trace trace1 =
        rank1.Run({.timing_seed = seed + 5000, .tickets = leads ? &trace0.io : nullptr});
    ASSERT_EQ(trace0.io, trace1.io);
    ASSERT_EQ(trace0.compute.size(), trace1.compute.size());
  }
}

TEST(Scheduler, DoesNotAllocateAfterTheFirstStep) {
  MUST("On and Next never allocate after the first step.");
  for (const uint32_t seed : Seeds(100)) {
    SchedulerRig rig = Random(seed);
    rig.Run({.steps = 1, .timing_seed = seed});
    const uint64_t of_first_step = rig.executor->allocations();
    rig.Run({.steps = 6, .timing_seed = seed + 1});
    ASSERT_EQ(rig.executor->allocations(), of_first_step);
  }
}

TEST(Scheduler, ForgetsPendingTasksAfterAnError) {
  MUST("The run is given up: forget what is pending.");
  for (const uint32_t seed : Seeds(300)) {
    SchedulerRig failing = Random(seed), fresh = Random(seed);
    const size_t stop_after = 1 + seed * 7919 % (3 * failing.graph.tasks().size());
    failing.Run({.timing_seed = seed, .stop_after = stop_after});
    ASSERT_TRUE(failing.Run({.timing_seed = seed + 1}) == fresh.Run({.timing_seed = seed + 1}));
  }
}

TEST(Scheduler, PlansNothingForAModelWithoutTrainableParameters) {
  MUST(
      "Together the buckets must cover every parameter exactly once: a model without "
      "trainable ones has none.");
  ModelSketch model;
  model.layers.resize(1);
  for (const bool global_hook : {false, true}) {
    model.global_hook = global_hook;
    EXPECT_EQ(SchedulerRig(Make<Scheduler>(), model).Run({.steps = 3}).io.size(),
              3u);  // the statistics
  }
}

ModelSketch RandomServed(std::mt19937& random) {
  for (;;) {
    ModelSketch model = ModelSketch::Random(random);
    if (model.served && !model.parameter_counts.empty()) return model;
  }
}

SchedulerRig ServedRig(uint32_t seed) {
  std::mt19937 random(seed);
  const ModelSketch model = RandomServed(random);
  return SchedulerRig(Make<Scheduler>(), model, &random);
}

// Servers hold a pull until all ranks have pushed. Ranks interleave at random.
TEST(Scheduler, NoRankWaitsForAnotherForEverAtServers) {
  MUST("A pull waits for the pushes of all ranks, so a pull that is under way holds back no push.");
  for (const uint32_t seed : Seeds(500)) {
    SchedulerRig one = ServedRig(seed), two = ServedRig(seed), three = ServedRig(seed);
    std::vector<SchedulerRig*> rigs = {&one, &two};
    if (seed % 3 == 0) rigs.push_back(&three);
    ServedRanks ranks(rigs, /*asynchronous=*/false);
    for (uint32_t run = 0; run < 3; ++run) {
      ASSERT_EQ(ranks.Run(seed * 10 + run, 4), "") << "in run " << run;
      for (size_t rank = 0; rank < rigs.size(); ++rank) {
        ASSERT_EQ(ranks.trace(rank).all.size(), 4 * one.graph.tasks().size());
      }
    }
  }
}

// Without servers that wait and without statistics, ranks need not hear of each other.
TEST(Scheduler, RanksAreAsynchronousAtServersThatDoNotWait) {
  MUST(
      "In every step each task is run once, when it is ready; while nothing runs, a lane with a "
      "ready task is not held.");
  ModelSketch model = ModelSketch::Chain({1000, 100000, 1000});
  model.served = model.asynchronous = true;
  model.tables = {0};
  SchedulerRig one(Make<Scheduler>(), model), two(Make<Scheduler>(), model);
  ServedRanks ranks({&one, &two}, /*asynchronous=*/true);
  EXPECT_EQ(ranks.Run(1, 6), "");
  EXPECT_EQ(ServedRanks({&one}, true).Run(2, 6), "");
}

TEST(Scheduler, PlansATableAsABucketOfItsOwn) {
  MUST("The parameter must be a bucket of its own, and whole.");
  ModelSketch model = ModelSketch::Chain({100, 1 << 20, 100, 100, 100});
  model.served = true;
  model.tables = {1, 3};
  SchedulerRig rig(Make<Scheduler>(), model);  // which checks the plan
  const auto is_table = [&](const exec::BucketLayout& bucket) {
    return bucket.spans.size() == 1 &&
           rig.graph.model_info().parameters[bucket.spans[0].parameter].alone != 0;
  };
  EXPECT_EQ(std::ranges::count_if(rig.graph.buckets(), is_table), 2);
}

}  // namespace
}  // namespace engine::conform
