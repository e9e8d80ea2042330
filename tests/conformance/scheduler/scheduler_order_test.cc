// The orders of the compute lane that the schedulers of this repository promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/conformance/scheduler/scheduler_rig.h"
#include "tests/support/matchers.h"

namespace engine::test {
namespace {

// Offers all tasks in the order given and returns the order in which the compute lane takes them.
std::vector<uint32_t> OrderTaken(Scheduler& scheduler, const std::vector<uint32_t>& offered) {
  scheduler.On({.kind = EventKind::kStepBegin, .step = 1});
  for (uint32_t task : offered) scheduler.On({.kind = EventKind::kTaskReady, .task = task});
  std::vector<uint32_t> taken;
  for (Action action = scheduler.Next(Lane::kCompute); action.kind == ActionKind::kRun;
       action = scheduler.Next(Lane::kCompute)) {
    taken.push_back(action.task);
  }
  return taken;
}

std::vector<TaskInfo> Tasks(std::vector<TaskInfo> tasks) {
  for (uint32_t id = 0; id < tasks.size(); ++id) tasks[id].id = id;
  return tasks;
}

TEST(FifoSched, TakesTasksInOrderOfArrival) {
  const auto scheduler = CreateFrom<Scheduler>(PluginPath("fifo_sched"));
  const auto tasks = Tasks({{.kind = TaskKind::kUpdate, .sequence = 3},
                            {.kind = TaskKind::kBackward, .priority = 5, .sequence = 2},
                            {.kind = TaskKind::kAccumulate, .sequence = 1},
                            {.kind = TaskKind::kForward}});
  ASSERT_TRUE(scheduler->Begin(tasks).ok());
  for (int pass = 1; pass <= 3; ++pass) {
    EXPECT_THAT(OrderTaken(*scheduler, {2, 0, 3, 1}), ElementsAre(2, 0, 3, 1));
  }
}

class ByNeed : public testing::TestWithParam<const char*> {
 protected:
  // The order taken when all tasks are ready, which must not depend on the order of the offers.
  std::vector<uint32_t> Order(std::vector<TaskInfo> infos, bool sharded = false) {
    const auto scheduler = CreateFrom<Scheduler>(PluginPath(GetParam()));
    ModelInfo info;
    info.communicator.kinds = UINT32_MAX;
    info.sharded = sharded ? 1 : 0;
    Must(LayoutOf(info, *scheduler));
    const auto tasks = Tasks(std::move(infos));
    EXPECT_TRUE(scheduler->Begin(tasks).ok());
    std::vector<uint32_t> offered(tasks.size());
    std::iota(offered.begin(), offered.end(), 0);
    const std::vector<uint32_t> order = OrderTaken(*scheduler, offered);
    std::mt19937 random(7);
    for (int pass = 1; pass <= 50; ++pass) {
      std::shuffle(offered.begin(), offered.end(), random);
      EXPECT_EQ(OrderTaken(*scheduler, offered), order) << "offers shuffled with seed 7";
    }
    return order;
  }
};

TEST_P(ByNeed, OrdersByUrgencyPriorityKindNeedSequenceAndId) {
  EXPECT_THAT(Order({{.kind = TaskKind::kUpdate, .sequence = 0, .needed_by = 4},   // 0: last
                     {.kind = TaskKind::kForward, .sequence = 7},                  // 1
                     {.kind = TaskKind::kBackward, .sequence = 7},                 // 2: larger id
                     {.kind = TaskKind::kBackward, .sequence = 6},                 // 3
                     {.kind = TaskKind::kBackward, .priority = 1, .sequence = 9},  // 4
                     {.kind = TaskKind::kUpdate, .priority = 1, .sequence = 1},    // 5: before 3
                     {.kind = TaskKind::kHook, .priority = -5, .sequence = 20},    // 6: urgent
                     {.kind = TaskKind::kAccumulate, .priority = -5, .sequence = 19},  // 7: urgent
                     {.kind = TaskKind::kAccumulate, .priority = 3, .sequence = 30},   // 8: first
                     {.kind = TaskKind::kHook, .sequence = 2, .needed_by = 3},         // 9: reduced
                     {.kind = TaskKind::kUpdate, .sequence = 12, .needed_by = 3}}),    // 10
              ElementsAre(8, 7, 6, 4, 5, 3, 1, 2, 9, 10, 0));
}

// The gather of a sharded parameter waits for its update.
TEST_P(ByNeed, RunsUpdatesBeforeForwardTasksWhenAGatherWaits) {
  const std::vector<TaskInfo> tasks = {{.kind = TaskKind::kForward, .sequence = 0},
                                       {.kind = TaskKind::kBackward, .sequence = 1},
                                       {.kind = TaskKind::kUpdate, .sequence = 2, .needed_by = 5}};
  EXPECT_THAT(Order(tasks, /*sharded=*/true), ElementsAre(1, 2, 0));
  EXPECT_THAT(Order(tasks, /*sharded=*/false), ElementsAre(0, 1, 2));
}

INSTANTIATE_TEST_SUITE_P(Plugins, ByNeed, testing::Values("priority_sched", "dear_sched"));

// The loss is a function of two layers, of which it shares a parameter with the second: when that
// is back, the sum of its two gradients and the first layer wait for the compute lane.
ModelSketch TwoBranches() {
  ModelSketch model;
  model.parameter_counts = {100000, 100000};
  model.layers = {{.parameters = {0}}, {.parameters = {1}}, {.inputs = {0, 1}, .parameters = {1}}};
  return model;
}

TEST(Backward, HasOneOrderOnEveryPass) {
  for (const std::string name :
       {"priority_sched", "dear_sched", "sequential_sched", "fifo_sched"}) {
    std::vector<std::string> expected = {"backward2", "backward1", "accumulate0", "backward0"};
    if (name == "fifo_sched") std::swap(expected[2], expected[3]);
    SchedulerRig rig(MakeScheduler(name), TwoBranches());
    for (uint32_t pass = 1; pass <= 20; ++pass) {
      std::vector<std::string> names;
      for (const Started& started : rig.Run({.steps = 1, .timing_seed = pass}).compute) {
        const TaskInfo& task = rig.graph.tasks()[started.task];
        if (task.kind == TaskKind::kBackward || task.kind == TaskKind::kAccumulate) {
          names.emplace_back(task.name);
        }
      }
      EXPECT_EQ(names, expected) << name << ", pass " << pass;
    }
  }
}

}  // namespace
}  // namespace engine::test
