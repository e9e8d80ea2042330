// The orders that fifo_sched and priority_sched promise.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/scheduler/scheduler_rig.h"

namespace engine::test {
namespace {

using testing::ElementsAre;

constexpr char kFifo[] = ENGINE_TEST_PLUGIN_DIR "/libengine_fifo_sched.so";
constexpr char kPriority[] = ENGINE_TEST_PLUGIN_DIR "/libengine_priority_sched.so";

// Offers all tasks in the order given and returns the order in which `lane` takes them.
std::vector<uint32_t> OrderTaken(Scheduler& scheduler, const std::vector<uint32_t>& offered,
                                 Lane lane) {
  scheduler.On({.kind = EventKind::kStepBegin, .step = 1});
  for (uint32_t task : offered) scheduler.On({.kind = EventKind::kTaskReady, .task = task});
  std::vector<uint32_t> taken;
  for (Action action = scheduler.Next(lane); action.kind == ActionKind::kRun;
       action = scheduler.Next(lane)) {
    taken.push_back(action.task);
  }
  return taken;
}

std::vector<TaskInfo> Tasks(std::vector<TaskInfo> tasks) {
  for (uint32_t id = 0; id < tasks.size(); ++id) {
    tasks[id].id = id;
    if (tasks[id].kind == TaskKind::kTransfer) tasks[id].lane = Lane::kIo;
  }
  return tasks;
}

TEST(FifoSched, TakesTasksInOrderOfArrival) {
  auto scheduler = MakeScheduler(kFifo);
  ASSERT_TRUE(scheduler);
  const auto tasks = Tasks({{.kind = TaskKind::kUpdate, .sequence = 3},
                            {.kind = TaskKind::kBackward, .priority = 5, .sequence = 2},
                            {.kind = TaskKind::kTransfer},
                            {.kind = TaskKind::kAccumulate, .sequence = 1},
                            {.kind = TaskKind::kTransfer, .priority = 9},
                            {.kind = TaskKind::kForward}});
  ASSERT_TRUE(scheduler->Begin(tasks).ok());
  for (int pass = 1; pass <= 3; ++pass) {
    EXPECT_THAT(OrderTaken(*scheduler, {3, 0, 5, 1}, Lane::kCompute), ElementsAre(3, 0, 5, 1));
    EXPECT_THAT(OrderTaken(*scheduler, {4, 2}, Lane::kIo), ElementsAre(4, 2));
  }
}

TEST(PrioritySched, OrdersByUrgencyPriorityKindSequenceAndId) {
  auto scheduler = MakeScheduler(kPriority);
  ASSERT_TRUE(scheduler);
  const auto tasks =
      Tasks({{.kind = TaskKind::kUpdate, .priority = 0, .sequence = 0},        // 0: last
             {.kind = TaskKind::kForward, .priority = 0, .sequence = 7},       // 1
             {.kind = TaskKind::kBackward, .priority = 0, .sequence = 7},      // 2: as 1, larger id
             {.kind = TaskKind::kBackward, .priority = 0, .sequence = 6},      // 3
             {.kind = TaskKind::kBackward, .priority = 1, .sequence = 9},      // 4
             {.kind = TaskKind::kUpdate, .priority = 1, .sequence = 1},        // 5: before 3
             {.kind = TaskKind::kHook, .priority = -5, .sequence = 20},        // 6: urgent
             {.kind = TaskKind::kAccumulate, .priority = -5, .sequence = 19},  // 7: urgent
             {.kind = TaskKind::kAccumulate, .priority = 3, .sequence = 30}});  // 8: urgent, first
  ASSERT_TRUE(scheduler->Begin(tasks).ok());
  std::vector<uint32_t> offered = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  std::mt19937 random(7);
  for (int pass = 1; pass <= 50; ++pass) {
    ASSERT_THAT(OrderTaken(*scheduler, offered, Lane::kCompute),
                ElementsAre(8, 7, 6, 4, 5, 3, 1, 2, 0))
        << "in pass " << pass << ", offers shuffled with seed 7";
    std::shuffle(offered.begin(), offered.end(), random);
  }
}

TEST(PrioritySched, StartsTransfersInReadyOrder) {
  auto scheduler = MakeScheduler(kPriority);
  ASSERT_TRUE(scheduler);
  const auto tasks = Tasks({{.kind = TaskKind::kTransfer, .priority = 1, .sequence = 0},
                            {.kind = TaskKind::kTransfer, .priority = 3, .sequence = 1},
                            {.kind = TaskKind::kTransfer, .priority = 2, .sequence = 2}});
  ASSERT_TRUE(scheduler->Begin(tasks).ok());
  EXPECT_THAT(OrderTaken(*scheduler, {2, 0, 1}, Lane::kIo), ElementsAre(2, 0, 1));
  EXPECT_THAT(OrderTaken(*scheduler, {1, 2, 0}, Lane::kIo), ElementsAre(1, 2, 0));
}

// ab = a + b, cd = c + d, final = ab + cd.
ModelSketch TwoSums() {
  ModelSketch model;
  model.parameter_counts = {100000, 100000, 100000, 100000};  // each its own unit
  model.layers = {{.parameters = {0, 1}}, {.parameters = {2, 3}}, {.inputs = {0, 1}}};
  return model;
}

std::vector<std::string> BackwardOrder(const SchedulerRig& rig, const Trace& trace) {
  std::vector<std::string> names;
  for (uint32_t id : trace.compute) {
    const TaskInfo& task = rig.graph.tasks()[id];
    if (task.kind == TaskKind::kBackward || task.kind == TaskKind::kAccumulate) {
      names.emplace_back(task.name);
    }
  }
  return names;
}

TEST(PrioritySched, AccumulatesAsEarlyAsPossibleInEveryPass) {
  SchedulerRig rig(kPriority, TwoSums(), nullptr);
  ASSERT_TRUE(rig.ok());
  for (uint32_t pass = 1; pass <= 4; ++pass) {
    Trace trace;
    ASSERT_EQ(rig.executor->RunStep(pass, /*timing_seed=*/pass, &trace), "");
    EXPECT_THAT(BackwardOrder(rig, trace),
                ElementsAre("backward2", "backward1", "accumulate2", "accumulate3", "backward0",
                            "accumulate0", "accumulate1"))
        << "in pass " << pass;
  }
}

TEST(FifoSched, AccumulatesInOrderOfArrivalInEveryPass) {
  SchedulerRig rig(kFifo, TwoSums(), nullptr);
  ASSERT_TRUE(rig.ok());
  for (uint32_t pass = 1; pass <= 4; ++pass) {
    Trace trace;
    ASSERT_EQ(rig.executor->RunStep(pass, /*timing_seed=*/pass, &trace), "");
    EXPECT_THAT(BackwardOrder(rig, trace),
                ElementsAre("backward2", "backward1", "backward0", "accumulate2", "accumulate3",
                            "accumulate0", "accumulate1"))
        << "in pass " << pass;
  }
}

class Fusion : public testing::TestWithParam<std::string> {
 protected:
  // The ids in each unit, for parameters of these sizes in ready order.
  std::vector<std::vector<uint32_t>> Units(const std::string& fuse_bytes,
                                           const std::vector<int64_t>& sizes_bytes) {
    std::vector<ParameterInfo> parameters;
    for (int64_t size_bytes : sizes_bytes) {
      const auto id = static_cast<uint32_t>(parameters.size());
      parameters.push_back({.id = id, .ready = id, .count = size_bytes / 4});
    }
    PlanRecorder plan;
    auto scheduler = MakeScheduler(GetParam(), {{"fuse_bytes", fuse_bytes}});
    if (!scheduler) return {};
    EXPECT_TRUE(scheduler->Plan({.parameters = parameters}, plan).ok());
    EXPECT_EQ(plan.Problem(parameters), "");
    std::vector<std::vector<uint32_t>> units;
    for (const PlannedUnit& unit : plan.units()) {
      units.emplace_back();
      for (const UnitSpan& span : unit.spans) units.back().push_back(span.parameter);
    }
    return units;
  }
};

TEST_P(Fusion, JoinsGradientsUntilAUnitIsBigEnough) {
  EXPECT_THAT(
      Units("1000", {400, 400, 400, 4, 5000, 996, 4, 400}),
      ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4), ElementsAre(5, 6), ElementsAre(7)));
}

TEST_P(Fusion, OfZeroBytesIsOneUnitPerParameter) {
  EXPECT_THAT(Units("0", {4, 4000, 4}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

INSTANTIATE_TEST_SUITE_P(Plugins, Fusion, testing::Values(kFifo, kPriority));

}  // namespace
}  // namespace engine::test
