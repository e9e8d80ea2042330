#include "tools/simulate/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/simulate/toy_step.h"

namespace engine::simulate {
namespace {

using test::kMs;
using test::PlainLink;
using test::ToyFifo;
using test::ToyLayer;
using test::ToyPriority;
using test::ToySequential;
using test::ToyStep;
using ::testing::HasSubstr;

// Three layers of 2 ms forward and 3 ms backward each: F = 6, B = 9.
std::vector<ToyLayer> Layers(int64_t first, int64_t second, int64_t third, int64_t slice = 0) {
  const auto layer = [&](int64_t bytes) {
    const int64_t slices = slice == 0 ? 1 : bytes / slice;
    return ToyLayer{2 * kMs, 3 * kMs, bytes, static_cast<int>(slices)};
  };
  return {layer(first), layer(second), layer(third)};
}

Result<SimulationResult> RunToy(const ToyStep& step, Scheduler& scheduler,
                                const NetworkModel& model = PlainLink(),
                                const SimulationOptions& options = {.steps = 10, .ranks = 2}) {
  SimulationOptions named = options;
  named.scheduler_name = "toy";
  return Simulate(step.graph, step.compute_ns, model, scheduler, named);
}

double StepMs(const ToyStep& step, Scheduler& scheduler, const NetworkModel& model = PlainLink(),
              const SimulationOptions& options = {.steps = 10, .ranks = 2}) {
  const auto result = RunToy(step, scheduler, model, options);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result->MeanStepNs() / kMs : -1;
}

TEST(SimulationTest, SequentialTakesTheSum) {
  ToySequential scheduler;
  EXPECT_EQ(StepMs(ToyStep(Layers(4 * kMs, 4 * kMs, 4 * kMs)), scheduler), 6 + 9 + 12);
}

// Backward ends a layer at 3, 6 and 9; transfers: 3 to 7, 7 to 11, 11 to 15; and forward begins
// when the gradient that came last is there.
TEST(SimulationTest, FifoOverlapsBackwardOnly) {
  ToyFifo scheduler;
  EXPECT_EQ(StepMs(ToyStep(Layers(4 * kMs, 4 * kMs, 4 * kMs)), scheduler), 6 + 15);
}

NetworkModel ServersBeside(int32_t servers) {
  NetworkModel model = PlainLink();
  model.servers = servers;
  return model;
}
ToyStep ServedStep() {
  return ToyStep(Layers(4 * kMs, 4 * kMs, 4 * kMs), 0, /*served=*/true);
}

// Pushes 3 to 7, 7 to 11, 11 to 15; pulls one later, on the other way of the link: 7 to 11 ... 19.
TEST(SimulationTest, PullsTravelBesidePushes) {
  ToyFifo scheduler;
  EXPECT_EQ(StepMs(ServedStep(), scheduler, ServersBeside(2)), 6 + 19);
  EXPECT_EQ(StepMs(ServedStep(), scheduler, ServersBeside(5)), 6 + 19);
}

// Two ranks share the link of the server: pushes 3 to 11, 11 to 19, 19 to 27, and a last pull.
TEST(SimulationTest, TooFewServersAreTheBottleneck) {
  ToyFifo scheduler;
  EXPECT_EQ(StepMs(ServedStep(), scheduler, ServersBeside(1)), 6 + 35);
}

// Half of the bytes stay at home; pushes and pulls share the link from 3 to 15.
TEST(SimulationTest, ServersInsideOfTheRanksShareTheirLinks) {
  ToyFifo scheduler;
  EXPECT_EQ(StepMs(ServedStep(), scheduler, ServersBeside(0)), 6 + 15);
}

// Of each transfer: the bytes, and the way there and back again.
TEST(SimulationTest, PushesAndPullsWaitForAnAnswer) {
  ToyFifo scheduler;
  NetworkModel model = ServersBeside(2);
  model.latency_ns = kMs / 2;
  EXPECT_EQ(StepMs(ServedStep(), scheduler, model), 6 + 19 + 2);
}

TEST(SimulationTest, FifoHidesWhatIsShorterThanBackward) {
  ToyFifo scheduler;
  EXPECT_EQ(StepMs(ToyStep(Layers(1 * kMs, 2 * kMs, 2 * kMs)), scheduler), 6 + 9 + 1);
}

// C = 9.1. In ready order T = 6 + 3 + 9.1. By need, the third layer makes way for the others, and
// only what is both ready last and needed first is seen: 0.1, and at most one slice before it.
TEST(SimulationTest, PriorityReachesTheBound) {
  const int64_t slice = kMs / 10;
  ToyFifo fifo;
  EXPECT_DOUBLE_EQ(StepMs(ToyStep(Layers(slice, 3 * kMs, 6 * kMs)), fifo), 18.1);
  ToyPriority priority(static_cast<uint64_t>(slice));
  const double step = StepMs(ToyStep(Layers(slice, 3 * kMs, 6 * kMs, slice)), priority);
  EXPECT_GE(step, 15.1);
  EXPECT_LE(step, 15.2);
}

// r > 1: the link rests only while the last layer is run forward and backward, because nothing else
// is left to send.
TEST(SimulationTest, PriorityReachesTheBoundOfTheLink) {
  const int64_t slice = kMs / 10;
  ToyPriority priority(static_cast<uint64_t>(slice));
  const double step = StepMs(ToyStep(Layers(slice, 10 * kMs, 20 * kMs, slice)), priority);
  EXPECT_GE(step, 30.1 + 5);
  EXPECT_LE(step, 30.3 + 5);
}

TEST(SimulationTest, OneRankTakesTheTimeOfItsCompute) {
  ToyPriority scheduler(1);
  EXPECT_EQ(StepMs(ToyStep(Layers(kMs, kMs, kMs)), scheduler, PlainLink(), {.steps = 5}), 15);
}

TEST(SimulationTest, OverheadsCount) {
  ToyFifo scheduler;
  const ToyStep step(Layers(0, 0, 0));
  const SimulationOptions options{
      .steps = 10, .ranks = 2, .task_overhead_ns = kMs / 10, .step_overhead_ns = kMs / 2};
  // 3 forward, 3 backward, 3 accumulate, 3 update.
  EXPECT_NEAR(StepMs(step, scheduler, PlainLink(), options), 15 + 12 * 0.1 + 0.5, 1e-9);
}

// The step ends when the statistics are there, although backward has ended before.
TEST(SimulationTest, StepWaitsForItsStatistics) {
  ToyFifo scheduler;
  EXPECT_EQ(StepMs(ToyStep(Layers(0, 0, 0), 20 * kMs), scheduler), 6 + 20);
}

TEST(SimulationTest, WaitingIsWhatCommunicationExposes) {
  ToySequential scheduler;
  const auto result = RunToy(ToyStep(Layers(4 * kMs, 4 * kMs, 4 * kMs)), scheduler);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->MeanWaitedNs(), 12 * kMs);
  EXPECT_EQ(result->step_ns.size(), 10);
}

TEST(SimulationTest, MoreBandwidthIsNeverSlower) {
  const ToyStep step(Layers(kMs, 5 * kMs, 9 * kMs, kMs));
  double before = 1e9;
  for (const double bits : {1e9, 2e9, 4e9, 8e9, 16e9, 1e12}) {
    NetworkModel model = PlainLink();
    model.bits_per_second = bits;
    ToyPriority scheduler(static_cast<uint64_t>(2 * kMs));
    const double now = StepMs(step, scheduler, model);
    EXPECT_LE(now, before) << bits;
    before = now;
  }
  EXPECT_NEAR(before, 15, 0.2);
}

TEST(SimulationTest, TheSameArgumentsGiveTheSameResult) {
  NetworkModel model = PlainLink();
  model.max_in_flight = 2;
  model.latency_ns = 12'345;
  model.bits_per_second = 7.77e9;
  const ToyStep step(Layers(kMs, 7 * kMs, 9 * kMs, kMs));
  const auto run = [&] {
    ToyPriority scheduler(static_cast<uint64_t>(2 * kMs));
    return RunToy(step, scheduler, model)->step_ns;
  };
  EXPECT_EQ(run(), run());
}

TEST(SimulationTest, CreditIsRespected) {
  NetworkModel model = PlainLink();
  model.max_in_flight = 2;
  ToyPriority scheduler(static_cast<uint64_t>(2 * kMs));
  StepMs(ToyStep(Layers(kMs, 7 * kMs, 9 * kMs, kMs)), scheduler, model);
  EXPECT_EQ(scheduler.most_used, static_cast<uint64_t>(2 * kMs));
}

// One transfer per layer and nothing to hide a ticket behind: each costs its way.
TEST(SimulationTest, OnlyLedOrdersWaitForTickets) {
  NetworkModel model = PlainLink();
  model.ticket_ns = kMs;
  const ToyStep step({ToyLayer{2 * kMs, 3 * kMs, 4 * kMs}});
  ToyPriority free(kMs), led(kMs, TransferOrder::kLeader), unordered(kMs, TransferOrder::kLeader);
  EXPECT_EQ(StepMs(step, free, model), 9);
  EXPECT_EQ(StepMs(step, led, model), 10);
  model.ordered = false;  // a communicator that takes any order needs no tickets
  EXPECT_EQ(StepMs(step, unordered, model), 9);
}

TEST(SimulationTest, SchedulerHearsWhatTheExecutorWouldSay) {
  ToyFifo scheduler;
  ASSERT_TRUE(
      RunToy(ToyStep(Layers(kMs, kMs, kMs)), scheduler, PlainLink(), {.steps = 2, .ranks = 2})
          .ok());
  std::vector<std::pair<EventKind, uint64_t>> marks;
  size_t ready = 0, done = 0;
  for (const SchedulerEvent& event : scheduler.events) {
    ready += event.kind == EventKind::kTaskReady;
    done += event.kind == EventKind::kTaskDone;
    const bool task = event.kind == EventKind::kTaskReady || event.kind == EventKind::kTaskDone;
    if (!task) marks.emplace_back(event.kind, event.step);
  }
  using enum EventKind;
  EXPECT_THAT(marks, ::testing::ElementsAre(
                         ::testing::Pair(kStepBegin, 1), ::testing::Pair(kBackwardEnd, 1),
                         ::testing::Pair(kStepBegin, 2), ::testing::Pair(kBackwardEnd, 2),
                         ::testing::Pair(kFlush, 2)));
  EXPECT_EQ(ready, 2 * 16);
  EXPECT_EQ(done, 2 * 16);
}

class HoldingScheduler : public ToyFifo {
 public:
  Action NextTransfer() noexcept override { return {}; }
};

TEST(SimulationTest, StallIsReported) {
  HoldingScheduler scheduler;
  const auto result = RunToy(ToyStep(Layers(kMs, kMs, kMs)), scheduler);
  ASSERT_EQ(result.status().code(), StatusCode::kTimeout);
  EXPECT_THAT(result.status().message(),
              HasSubstr("stalled: scheduler 'toy' holds 'statistics 3'"));
}

// Asks for a transfer again that is under way.
class RepeatingScheduler : public ToyFifo {
 public:
  Action NextTransfer() noexcept override {
    const Action action = ToyFifo::NextTransfer();
    if (action.kind == ActionKind::kRun) last_ = action;
    return last_;
  }

 private:
  Action last_;
};

TEST(SimulationTest, TaskThatIsNotReadyIsNamed) {
  RepeatingScheduler scheduler;
  const auto result = RunToy(ToyStep(Layers(kMs, kMs, kMs), 100), scheduler);
  ASSERT_EQ(result.status().code(), StatusCode::kPlugin);
  EXPECT_THAT(result.status().message(), HasSubstr("scheduler 'toy' asked for task 3"));
  EXPECT_THAT(result.status().message(), HasSubstr("statistics 3"));
}

TEST(SimulationTest, FourThousandRanks) {
  std::vector<ToyLayer> model(50, ToyLayer{kMs, 2 * kMs, 4 << 20, 4});
  NetworkModel ring = PlainLink();
  ring.pattern = Pattern::kRing;
  ring.latency_ns = 1000;
  ToyPriority scheduler(16 << 20);
  const double step = StepMs(ToyStep(model), scheduler, ring, {.steps = 20, .ranks = 4096});
  // 200 transfers of 8190 rounds one after another.
  EXPECT_GT(step, 200 * 8.19);
}

}  // namespace
}  // namespace engine::simulate
