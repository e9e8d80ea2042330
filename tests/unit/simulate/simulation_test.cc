#include "tools/simulate/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_status.h"
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
using ::testing::Ge;
using ::testing::Le;

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
                                SimulationOptions options = {.steps = 10, .ranks = 2}) {
  options.scheduler_name = "toy";
  return Simulate(step.graph, step.compute_ns, model, scheduler, options);
}

double StepMs(const ToyStep& step, Scheduler& scheduler, const NetworkModel& model = PlainLink(),
              const SimulationOptions& options = {.steps = 10, .ranks = 2}) {
  return ValueOf(RunToy(step, scheduler, model, options)).MeanStepNs() / kMs;
}
double FifoMs(const ToyStep& step, const NetworkModel& model = PlainLink()) {
  ToyFifo scheduler;
  return StepMs(step, scheduler, model);
}

TEST(SimulationTest, SequentialTakesTheSum) {
  ToySequential scheduler;
  const auto result = ValueOf(RunToy(ToyStep(Layers(4 * kMs, 4 * kMs, 4 * kMs)), scheduler));
  EXPECT_EQ(result.step_ns.size(), 10);
  EXPECT_EQ(result.MeanStepNs() / kMs, 6 + 9 + 12);
  EXPECT_EQ(result.MeanWaitedNs(), 12 * kMs) << "what communication exposes";
}

TEST(SimulationTest, FifoOverlapsBackwardOnly) {
  // Backward ends a layer at 3, 6 and 9; transfers: 3 to 7, 7 to 11, 11 to 15; and forward begins
  // when the gradient that came last is there.
  EXPECT_EQ(FifoMs(ToyStep(Layers(4 * kMs, 4 * kMs, 4 * kMs))), 6 + 15);
  EXPECT_EQ(FifoMs(ToyStep(Layers(1 * kMs, 2 * kMs, 2 * kMs))), 6 + 9 + 1);
  // The step ends when the statistics are there, although backward has ended before.
  EXPECT_EQ(FifoMs(ToyStep(Layers(0, 0, 0), 20 * kMs)), 6 + 20);
}

TEST(SimulationTest, PushesAndPulls) {
  const auto served_ms = [](int32_t servers, int64_t latency_ns = 0) {
    NetworkModel model = PlainLink();
    model.servers = servers;
    model.latency_ns = latency_ns;
    return FifoMs(ToyStep(Layers(4 * kMs, 4 * kMs, 4 * kMs), 0, /*served=*/true), model);
  };
  // Pushes 3 to 7, 7 to 11, 11 to 15; pulls one later, on the other way of the link: 7 to 11 ... 19.
  EXPECT_EQ(served_ms(2), 6 + 19);
  EXPECT_EQ(served_ms(5), 6 + 19);
  // Two ranks share the link of the server: pushes 3 to 11, 11 to 19, 19 to 27, and a last pull.
  EXPECT_EQ(served_ms(1), 6 + 35);
  // Servers inside of the ranks: half of the bytes stay at home; pushes and pulls share the link
  // from 3 to 15.
  EXPECT_EQ(served_ms(0), 6 + 15);
  // Of each transfer: the bytes, and the way there and back again.
  EXPECT_EQ(served_ms(2, kMs / 2), 6 + 19 + 2);
}

TEST(SimulationTest, PriorityReachesTheBound) {
  constexpr int64_t kSlice = kMs / 10;
  const auto priority_ms = [](int64_t second, int64_t third) {
    ToyPriority priority(kSlice);
    return StepMs(ToyStep(Layers(kSlice, second, third, kSlice)), priority);
  };
  // C = 9.1. In ready order T = 6 + 3 + 9.1. By need, the third layer makes way for the others, and
  // only what is both ready last and needed first is seen: 0.1, and at most one slice before it.
  EXPECT_DOUBLE_EQ(FifoMs(ToyStep(Layers(kSlice, 3 * kMs, 6 * kMs))), 18.1);
  EXPECT_THAT(priority_ms(3 * kMs, 6 * kMs), AllOf(Ge(15.1), Le(15.2)));
  // r > 1: the link rests only while the last layer is run forward and backward, because nothing
  // else is left to send.
  EXPECT_THAT(priority_ms(10 * kMs, 20 * kMs), AllOf(Ge(30.1 + 5), Le(30.3 + 5)));
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
  model.collective = false;  // with servers no rank waits for the transfers of another
  EXPECT_EQ(StepMs(step, unordered, model), 9);
}

TEST(SimulationTest, SchedulerHearsWhatTheExecutorWouldSay) {
  ToyFifo scheduler;
  StepMs(ToyStep(Layers(kMs, kMs, kMs)), scheduler, PlainLink(), {.steps = 2, .ranks = 2});
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
  EXPECT_THAT(
      RunToy(ToyStep(Layers(kMs, kMs, kMs)), scheduler),
      FailsWith(StatusCode::kTimeout, HasSubstr("stalled: scheduler 'toy' holds 'statistics 3'")));
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
  EXPECT_THAT(result,
              FailsWith(StatusCode::kPlugin, HasSubstr("scheduler 'toy' asked for task 3")));
  EXPECT_THAT(result.status().message(), HasSubstr("statistics 3"));
}

}  // namespace
}  // namespace engine::simulate
