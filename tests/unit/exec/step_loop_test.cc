// The loop without threads, clock or network, driven by hand.
#include "core/exec/step_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/exec/rig.h"

namespace engine::test {
namespace {

// forward -> statistics; backward -> transfer -> update -> forward of the next step.
exec::TaskGraph OneLayer() {
  exec::TaskGraph graph;
  const auto add = [&](TaskKind kind, const char* name, std::vector<uint32_t> after) {
    const auto id = static_cast<uint32_t>(graph.tasks.size());
    graph.tasks.push_back({.info = {.id = id, .kind = kind, .sequence = id}, .name = name});
    exec::Task& task = graph.tasks.back();
    if (kind == TaskKind::kTransfer) task.info.lane = Lane::kIo;
    for (const uint32_t earlier : after) graph.tasks[earlier].successors.push_back(id);
    task.dependency_count = static_cast<int32_t>(after.size());
    return id;
  };
  const uint32_t forward = add(TaskKind::kForward, "forward", {});
  graph.statistics = add(TaskKind::kTransfer, "statistics", {forward});
  const uint32_t backward = add(TaskKind::kBackward, "backward", {forward});
  const uint32_t transfer = add(TaskKind::kTransfer, "transfer", {backward});
  const uint32_t update = add(TaskKind::kUpdate, "update", {transfer, graph.statistics});
  graph.tasks[forward].opens_step = true;
  graph.tasks[forward].reads = {0};
  graph.tasks[forward].carried_count = 1;
  graph.tasks[update].completes = {0};
  graph.tasks[update].next_successors = {forward};
  graph.tasks[transfer].tail = graph.tasks[update].tail = true;
  for (const exec::Task& task : graph.tasks) graph.infos.push_back(task.info);
  return graph;
}

// Every task takes one bucket of time; a transfer ends when there is nothing else to do.
class ByHand final : public exec::StepLoop::Calls {
 public:
  explicit ByHand(Scheduler& scheduler, exec::TaskGraph steps = OneLayer())
      : graph(std::move(steps)), loop(graph, scheduler, "by_hand") {
    EXPECT_TRUE(scheduler.Begin(graph.infos).ok());
  }
  Status Run(const exec::Task& task) override {
    loop.Start(task.info.id, now);
    log.push_back(task.name);
    if (task.tail) tail_steps.push_back(loop.SpanOf(task.info.id).step);
    loop.Finish(task.info.id, ++now);
    return Start();
  }
  Status Wait() override {
    if (under_way.empty()) return loop.Stalled();
    loop.Finish(under_way.front(), ++now);
    under_way.erase(under_way.begin());
    return Start();
  }
  Status Start() {
    for (;;) {
      ENGINE_ASSIGN_OR_RETURN(const uint32_t task, loop.NextTransfer());
      if (task == trace::kNoTask) return {};
      log.push_back(graph.tasks[task].name);
      loop.Start(task, now);
      under_way.push_back(task);
    }
  }

  const exec::TaskGraph graph;
  exec::StepLoop loop;
  int64_t now = 0;
  std::vector<uint32_t> under_way;
  std::vector<std::string> log;
  std::vector<uint64_t> tail_steps;  // of updates
};

TEST(StepLoopTest, TheHeadOfAStepMayEndBeforeItsTail) {
  RandomScheduler scheduler;
  ByHand hand(scheduler);
  hand.loop.BeginStep(1, 0);
  ASSERT_TRUE(hand.loop.Drive(&exec::StepLoop::HeadDone, hand).ok());
  EXPECT_THAT(hand.log, ElementsAre("forward", "statistics", "backward", "transfer"));
  EXPECT_TRUE(hand.loop.HeadDone());
  EXPECT_FALSE(hand.loop.TailDone());
  EXPECT_EQ(hand.loop.SpanOf(2).begin_ns, 1);
  EXPECT_EQ(hand.loop.LastUpdated().step, 0u) << "its transfer is under way";

  hand.log.clear();
  hand.loop.BeginStep(2, hand.now);
  EXPECT_FALSE(hand.loop.HeadDone()) << "the statistics of the new step are not there";
  ASSERT_TRUE(hand.loop.Drive(&exec::StepLoop::HeadDone, hand).ok());
  EXPECT_THAT(hand.log, ElementsAre("update", "forward", "statistics", "backward", "transfer"));
  EXPECT_EQ(hand.loop.StepOf(hand.graph.tasks[3]), 2u);
  EXPECT_EQ(hand.loop.LastUpdated().step, 1u);
  EXPECT_EQ(hand.loop.LastUpdated().begun, 2u);
  hand.loop.BeginFlush();
  ASSERT_TRUE(hand.loop.Drive(&exec::StepLoop::TailDone, hand).ok());
  EXPECT_EQ(hand.log.back(), "update");
  EXPECT_EQ(hand.loop.LastUpdated().step, 2u);
  EXPECT_THAT(hand.tail_steps, ElementsAre(1, 2)) << "of the step before, while a step runs";
}

// A graph in which the forward task of the next step does not wait for the update of what it reads.
TEST(StepLoopTest, AParameterOfAnotherVersionIsNotRead) {
  exec::TaskGraph graph = OneLayer();
  graph.tasks[0].carried_count = 0;
  graph.tasks[4].next_successors.clear();
  RandomScheduler scheduler;
  ByHand hand(scheduler, std::move(graph));
  hand.loop.BeginStep(1, 0);
  ASSERT_TRUE(hand.loop.Drive(&exec::StepLoop::HeadDone, hand).ok());
  hand.loop.BeginStep(2, hand.now);
  const Status status = hand.loop.Drive(&exec::StepLoop::HeadDone, hand);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_STREQ(status.message(),
               "'forward' of step 2 would read version 0 of a parameter instead of 1");
}

class Insisting final : public RandomScheduler {
 public:
  explicit Insisting(Action action) : action_(action) {}
  Action Next(Lane) noexcept override { return action_; }

 private:
  const Action action_;
};

TEST(StepLoopTest, ASchedulerThatIsWrongIsNamed) {
  for (const uint32_t task : {1u, 2u, 99u}) {  // of the other lane, not ready, not there
    Insisting scheduler({.kind = ActionKind::kRun, .task = task});
    ByHand hand(scheduler);
    hand.loop.BeginStep(1, 0);
    const Status status = hand.loop.Drive(&exec::StepLoop::HeadDone, hand);
    EXPECT_THAT(status,
                FailsWith(StatusCode::kPlugin,
                          HasSubstr("scheduler 'by_hand' asked for task " + std::to_string(task))));
  }
  Insisting mixes({.kind = ActionKind::kRun, .task = 1});  // a transfer that is ready
  ByHand mixed(mixes);
  mixed.loop.BeginStep(1, 0);
  mixed.loop.Start(0, 0);
  mixed.loop.Finish(0, 1);
  EXPECT_EQ(mixed.loop.Drive(&exec::StepLoop::HeadDone, mixed).code(), StatusCode::kPlugin);
  EXPECT_TRUE(mixed.log.empty()) << "a transfer has run on the compute lane";
  Insisting holds({});
  ByHand hand(holds);
  hand.loop.BeginStep(1, 0);
  const Status status = hand.loop.Drive(&exec::StepLoop::HeadDone, hand);
  EXPECT_THAT(status, FailsWith(StatusCode::kTimeout,
                                HasSubstr("holds 'forward' although nothing is under way")));
}

}  // namespace
}  // namespace engine::test
