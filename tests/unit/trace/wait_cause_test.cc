#include "tools/trace/wait_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/trace/made_trace.h"

namespace engine::trace {
namespace {

// Why the first wait of rank 0 was.
WaitCause Explain(std::vector<RankTimeline> timelines) {
  std::vector<TimelineIndex> ranks;
  ranks.reserve(timelines.size());
  for (RankTimeline& timeline : timelines) {
    MoveToClockOfRankZero(timeline);
    ranks.emplace_back(timeline);
  }
  WaitCause cause = CauseFinder(ranks).Explain(0, ranks[0].Stalls().at(0));
  cause.transfer = nullptr;  // ends with the timelines
  return cause;
}

// A cause of that kind and length whose text contains `words`.
MATCHER_P3(Is, kind, part_us, words, "") {
  *result_listener << "kind " << static_cast<int>(arg.kind) << ", " << arg.part_ns / kUs
                   << " us: " << arg.text;
  return arg.kind == kind && arg.part_ns == part_us * kUs &&
         arg.text.find(words) != std::string::npos;
}

TimelineMaker Rank(int32_t rank) {
  return TimelineMaker(rank, 2, TwoLayerTasks(2000000));
}
// Rank 0, which waits for update a.
TimelineMaker Waits(int64_t begin_us, int64_t end_us) {
  TimelineMaker run = Rank(0);
  return run.Wait(kUpdateA, 1, begin_us, end_us).Compute(kUpdateA, 1, end_us, end_us + 100);
}

TEST(WaitCause, TheRankThatSubmittedLate) {
  TimelineMaker fast = Waits(1000, 6000), slow = Rank(1);
  fast.Compute(kBackwardA, 1, 0, 1000).Move(kTransferA, 1, 1000, 1010, 1020, 5990);
  slow.Compute(kBackwardA, 1, 0, 4100).Move(kTransferA, 1, 4100, 4110, 4120, 5990);
  const WaitCause cause = Explain({fast.timeline, slow.timeline});
  EXPECT_EQ(cause.rank, 1);
  EXPECT_THAT(cause, Is(CauseKind::kLateRank, 3100,
                        "rank 1 had it ready 3.10 ms later than rank 0: its backward a took 3.10 "
                        "ms longer"));
}

TEST(WaitCause, TheRankThatWasSlowAllAlong) {
  TimelineMaker fast = Waits(1500, 5000), slow = Rank(1);
  fast.Compute(kForwardA, 1, 0, 500).Compute(kBackwardB, 1, 500, 1000);
  fast.Compute(kBackwardA, 1, 1000, 1500).Move(kTransferA, 1, 1500, 1500, 1500, 5000);
  slow.Compute(kForwardA, 1, 0, 1500).Compute(kBackwardB, 1, 1500, 3200);
  slow.Compute(kBackwardA, 1, 3200, 4500).Move(kTransferA, 1, 4500, 4500, 4500, 5000);
  EXPECT_EQ(Explain({fast.timeline, slow.timeline}).text,
            "rank 1 had it ready 3.00 ms later than rank 0: its tasks of this step took 3.00 ms "
            "longer, most of all backward b (1.20 ms)");
}

TEST(WaitCause, TheRankThatBeganLate) {
  TimelineMaker fast = Waits(1000, 5000), slow = Rank(1);
  fast.Compute(kBackwardA, 1, 0, 1000).Move(kTransferA, 1, 1000, 1000, 1000, 5000);
  slow.Compute(kBackwardA, 1, 3000, 4000).Move(kTransferA, 1, 4000, 4000, 4000, 5000);
  EXPECT_EQ(Explain({fast.timeline, slow.timeline}).text,
            "rank 1 had it ready 3.00 ms later than rank 0: its backward a ended late");
}

// Rank 1 decides the order, so rank 0 cannot submit what it has ready.
TEST(WaitCause, TheRankThatDecidesTheOrderAndIsBehind) {
  TimelineMaker follows = Waits(1000, 5000), leads = Rank(1);
  follows.Compute(kBackwardA, 1, 0, 1000).Move(kTransferA, 1, 1000, 4010, 4010, 5000);
  follows.Move(kTransferB, 1, 900, 1200, 1200, 4000);
  leads.Compute(kBackwardA, 1, 0, 4000).Move(kTransferA, 1, 4000, 4010, 4010, 5000);
  EXPECT_THAT(Explain({follows.timeline, leads.timeline}),
              Is(CauseKind::kLateRank, 3000,
                 "rank 1 had it ready 3.00 ms later than rank 0: its backward a took 3.00 ms "
                 "longer"));
}

// The same on the clocks of two hosts.
TEST(WaitCause, KnowsTheClockOfTheOtherRank) {
  TimelineMaker fast = Waits(1000, 6000), other = Rank(1);
  fast.Move(kTransferA, 1, 1000, 1010, 1020, 5990);
  other.Move(kTransferA, 1, 4100, 4110, 4120, 8990);
  other.timeline.clock_offset_ns = -3090 * kUs;
  EXPECT_EQ(Explain({fast.timeline, other.timeline}).kind, CauseKind::kWire);
  other.timeline.clock_offset_ns = -90 * kUs;
  EXPECT_EQ(Explain({fast.timeline, other.timeline}).kind, CauseKind::kLateRank);
  other.timeline.clock_error_ns = 4000 * kUs;  // then nobody knows who was late
  EXPECT_NE(Explain({fast.timeline, other.timeline}).kind, CauseKind::kLateRank);
}

TEST(WaitCause, TheRankThatSubmittedLateBecauseOfItsQueue) {
  TimelineMaker fast = Waits(1000, 6000), slow = Rank(1);
  fast.Move(kTransferA, 1, 1000, 1010, 1020, 5990);
  slow.Move(kTransferB, 1, 900, 900, 900, 4100).Move(kTransferA, 1, 1000, 4110, 4120, 5990);
  const WaitCause cause = Explain({fast.timeline, slow.timeline});
  EXPECT_EQ(cause.kind, CauseKind::kLateRank);
  EXPECT_THAT(cause.text,
              ::testing::HasSubstr("there it was in the queue for 3.11 ms, behind transfer b"));
}

TEST(WaitCause, TheWire) {
  TimelineMaker a = Waits(1000, 6000), b = Rank(1);
  for (TimelineMaker* rank : {&a, &b}) rank->Move(kTransferA, 1, 1000, 1010, 1500, 5500);
  EXPECT_THAT(Explain({a.timeline, b.timeline}),
              Is(CauseKind::kWire, 4000, "the wire: 2 MB in 4.00 ms"));
}

TEST(WaitCause, TheQueue) {
  for (const int64_t begin_us : {4000, 1000}) {  // of the scheduler, and of the communicator
    TimelineMaker maker = Waits(1000, 5000);
    maker.Move(kTransferB, 1, 500, 500, 500, 4000);
    maker.Move(kTransferA, 1, 1000, begin_us, 4000, 5000);
    EXPECT_THAT(Explain({maker.timeline}),
                Is(CauseKind::kQueue, 3000, "the queue for 3.00 ms, behind transfer b"));
  }
}

TEST(WaitCause, ATransferHeldBackWithoutNeed) {
  TimelineMaker maker = Waits(1000, 5000);
  maker.Move(kTransferA, 1, 1000, 4000, 4000, 5000);
  EXPECT_THAT(Explain({maker.timeline}), Is(CauseKind::kHeld, 3000, "nothing else was under way"));
}

TEST(WaitCause, AComputeTaskHeldBackWithoutNeed) {
  TimelineMaker maker = Rank(0);
  maker.Move(kTransferA, 1, 10, 10, 10, 90).Wait(kUpdateA, 1, 100, 500);
  maker.Compute(kUpdateA, 1, 500, 600);
  maker.timeline.spans.back().ready_ns = 90 * kUs;
  EXPECT_THAT(Explain({maker.timeline}), Is(CauseKind::kHeld, 400, "ready all the time"));
}

// A gather is ready when its scatter is done: the scatter is what took long.
TEST(WaitCause, GoesBackToWhatATransferWaitedFor) {
  std::vector<TraceTask> tasks = {
      MakeTask("backward", TaskKind::kBackward), MakeTransfer("scatter", 0, 1000000, 3, {0}),
      MakeTransfer("gather", 0, 1000000, 3, {1}), MakeTask("update", TaskKind::kUpdate, {2})};
  TimelineMaker maker(0, 2, tasks);
  maker.Move(1, 1, 100, 100, 200, 4000).Move(2, 1, 4000, 4000, 4010, 4500);
  maker.Wait(3, 1, 100, 4500).Compute(3, 1, 4500, 4600);
  EXPECT_THAT(Explain({maker.timeline}), Is(CauseKind::kWire, 3800, "the wire: 1 MB in 3.80 ms"));
}

TEST(WaitCause, AWaitThatNoTaskEnded) {
  TimelineMaker maker = Rank(0);
  maker.Wait(kNoTask, 1, 100, 900).Move(kTransferB, 1, 50, 50, 50, 500);
  maker.Move(kTransferA, 1, 50, 50, 400, 899);
  EXPECT_EQ(Explain({maker.timeline}).kind, CauseKind::kWire);
  TimelineMaker empty = Rank(0);
  empty.Wait(kNoTask, 1, 100, 900);
  EXPECT_EQ(Explain({empty.timeline}).kind, CauseKind::kUnknown);
}

// ---- Servers

TimelineMaker Served(int32_t rank) {
  return TimelineMaker(rank, 2, ServedLayerTasks(2000000));
}

// Waits for the pull from 1300 to 6000, which begins at `pull_us`; the push took until 1500.
TimelineMaker WaitsForPull(int64_t pull_us = 1500) {
  TimelineMaker run = Served(0);
  run.Compute(kServedBackward, 1, 0, 1000).Move(kServedPush, 1, 1000, 1000, 1000, 1500);
  run.Wait(kServedForward, 2, 1300, 6000).Compute(kServedForward, 2, 6000, 6100);
  return run.Move(kServedPull, 1, 1500, pull_us, pull_us, 5990);
}

TEST(WaitCause, ThePullThatServersHoldForALateRank) {
  TimelineMaker fast = WaitsForPull(), slow = Served(1);
  slow.Compute(kServedBackward, 1, 0, 4700).Move(kServedPush, 1, 4700, 4700, 4700, 5300);
  slow.Move(kServedPull, 1, 5300, 5300, 5300, 5990);
  EXPECT_THAT(Explain({fast.timeline, slow.timeline}),
              Is(CauseKind::kLateRank, 3800,
                 "rank 1 pushed it 3.80 ms after rank 0 had asked for it: its backward a took 3.70 "
                 "ms longer"));
}

TEST(WaitCause, ThePushThatWasSlowElsewhere) {
  TimelineMaker fast = WaitsForPull(), slow = Served(1);
  slow.Compute(kServedBackward, 1, 0, 1000).Move(kServedPush, 1, 1000, 1000, 1200, 5300);
  slow.Move(kServedPull, 1, 5300, 5300, 5300, 5990);
  EXPECT_EQ(Explain({fast.timeline, slow.timeline}).text,
            "rank 1 pushed it 3.80 ms after rank 0 had asked for it: its push took 4.10 ms");
}

TEST(WaitCause, TheWireOfAPullFromWhenAllHavePushed) {
  TimelineMaker fast = WaitsForPull(), other = Served(1);
  other.Compute(kServedBackward, 1, 0, 1000).Move(kServedPush, 1, 1000, 1000, 1000, 1990);
  // That the other rank asks for it later does not matter.
  other.Move(kServedPull, 1, 1990, 4000, 4000, 5990);
  EXPECT_THAT(Explain({fast.timeline, other.timeline}),
              Is(CauseKind::kWire, 4000, "the wire: 2 MB in 4.00 ms"));
}

TEST(WaitCause, ThePullThatWasHeldBack) {
  EXPECT_THAT(Explain({WaitsForPull(5000).timeline}), Is(CauseKind::kHeld, 3500, ""));
}

// A pull that became ready late in the wait stands for its push, which has to do with no other
// rank.
TEST(WaitCause, TheOwnPush) {
  TimelineMaker run = Served(0), other = Served(1);
  run.Compute(kServedBackward, 1, 0, 1000).Move(kServedPush, 1, 1000, 1000, 1010, 5500);
  run.Wait(kServedForward, 2, 1000, 6000).Compute(kServedForward, 2, 6000, 6100);
  run.Move(kServedPull, 1, 5500, 5500, 5500, 5990);
  other.Compute(kServedBackward, 1, 0, 5000).Move(kServedPush, 1, 5000, 5000, 5000, 5400);
  EXPECT_THAT(Explain({run.timeline, other.timeline}),
              Is(CauseKind::kWire, 4490, "the wire: 2 MB in 4.49 ms"));
}

}  // namespace
}  // namespace engine::trace
