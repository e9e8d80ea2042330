#include "tools/trace/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/expect_status.h"
#include "tests/unit/trace/made_trace.h"

namespace engine::trace {
namespace {

constexpr double kMs = 1e6;

TraceSummary Summarize(Trace trace, const SummaryOptions& options = {}) {
  return ValueOf(SummarizeTrace(std::move(trace), options));
}
TraceSummary Summarize(const TimelineMaker& maker, const SummaryOptions& options = {}) {
  return Summarize({.metadata = {}, .ranks = {maker.timeline}}, options);
}

// See TwoLayerRun for the step.
TEST(Summary, KnowsWhereTheTimeWent) {
  const TraceSummary summary = Summarize(TwoRanks(6));
  EXPECT_THAT(summary.steps, ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(summary.left_out, "1..2 (warm-up)");
  ASSERT_EQ(summary.ranks.size(), 2u);
  for (const StepFigures& figures :
       {summary.all, summary.ranks[0].second, summary.ranks[1].second}) {
    EXPECT_DOUBLE_EQ(figures.step, 1.0 * kMs);
    EXPECT_DOUBLE_EQ(figures.forward, 0.2 * kMs);
    EXPECT_DOUBLE_EQ(figures.backward, 0.4 * kMs);
    EXPECT_DOUBLE_EQ(figures.hooks, 0);
    EXPECT_DOUBLE_EQ(figures.update, 0.03 * kMs);
    EXPECT_DOUBLE_EQ(figures.exposed, 0.29 * kMs);
    EXPECT_DOUBLE_EQ(figures.silent, 0);
    EXPECT_DOUBLE_EQ(figures.other, 0.08 * kMs);
    EXPECT_DOUBLE_EQ(figures.communication, 0.5 * kMs);  // 400-900
    EXPECT_DOUBLE_EQ(*figures.overlap, 1 - 0.29 / 0.5);
    // Two buckets of 3 MB in 500 us; of 2 ranks an all-reduce puts its size on the link.
    EXPECT_DOUBLE_EQ(*figures.algorithm_bandwidth, 6e6 / 500e-6);
    EXPECT_DOUBLE_EQ(*figures.bus_bandwidth, 6e6 / 500e-6);
  }
  EXPECT_DOUBLE_EQ(summary.link_bytes, 6e6);
  EXPECT_DOUBLE_EQ(summary.goodput, 6e6 / 500e-6);
  EXPECT_DOUBLE_EQ(summary.compute_ns, 0.6 * kMs);
  EXPECT_DOUBLE_EQ(summary.ideal_ns, 0.5 * kMs);
  EXPECT_DOUBLE_EQ(summary.efficiency, 0.6);
}

TEST(Summary, TakesAGivenBandwidth) {
  const TraceSummary summary = Summarize(TwoRanks(6), {.bandwidth = 7.5e9, .steps = {}});
  EXPECT_DOUBLE_EQ(summary.ideal_ns, 0.8 * kMs);
  EXPECT_DOUBLE_EQ(summary.efficiency, 0.8);
  EXPECT_TRUE(summary.goodput_given);
}

TEST(Summary, CountsBytesOfALinkByKindAndRanks) {
  TraceTask task = MakeTransfer("t", 0, 1200, 0, {});
  const auto expect = [&](TransferKind kind, int32_t ranks, double out, double in) {
    SCOPED_TRACE(Name(kind));
    task.transfer = kind;
    LinkLoad load{.out = 10, .in = 10};
    AddLinkBytes(task, ranks, &load);
    EXPECT_DOUBLE_EQ(load.out, 10 + out);
    EXPECT_DOUBLE_EQ(load.in, 10 + in);
    EXPECT_DOUBLE_EQ(load.larger(), 10 + std::max(out, in));
  };
  expect(TransferKind::kAllReduce, 4, 1800, 1800);
  expect(TransferKind::kAllReduce, 1, 0, 0);
  expect(TransferKind::kReduceScatter, 4, 900, 900);
  expect(TransferKind::kAllGather, 4, 900, 900);
  expect(TransferKind::kBroadcast, 4, 1200, 1200);
  expect(TransferKind::kBarrier, 4, 0, 0);
  expect(TransferKind::kPush, 4, 1200, 0);
  expect(TransferKind::kPull, 4, 0, 1200);
}

// What a rank spends waiting for another is no time of the link.
TEST(Summary, GoodputCountsFromWhenAllRanksAreThere) {
  Trace trace = TwoRanks(6);
  for (Span& span : trace.ranks[1].spans) {
    if (span.kind == SpanKind::kTask && span.task == kTransferB) span.wire_ns += 100 * kUs;
  }
  const TraceSummary summary = Summarize(std::move(trace));
  EXPECT_DOUBLE_EQ(summary.goodput, 6e6 / 400e-6);
  EXPECT_DOUBLE_EQ(*summary.ranks[0].second.bus_bandwidth, 6e6 / 500e-6);
  EXPECT_DOUBLE_EQ(*summary.ranks[1].second.bus_bandwidth, 6e6 / 400e-6);
}

// 3 MB go out in 250 us and as many come in meanwhile: the link carries both at once.
TEST(Summary, OfServersCountsTheLargerDirection) {
  const auto served = [](int32_t rank) {
    TimelineMaker run(rank, 2, ServedLayerTasks(3000000));
    for (int64_t step = 1; step <= 4; ++step) {
      const int64_t t = step * 1000;
      const auto s = static_cast<uint64_t>(step);
      run.Compute(kServedForward, s, t, t + 100).Compute(kServedBackward, s, t + 100, t + 300);
      run.Move(kServedPush, s, t + 300, t + 350, t + 350, t + 600);
      run.Move(kServedPull, s, t + 600, t + 600, t + 600, t + 1000).Step(s, t, t + 1000);
    }
    return run.timeline;
  };
  const TraceSummary summary = Summarize({.metadata = {}, .ranks = {served(0), served(1)}});
  EXPECT_DOUBLE_EQ(summary.link_bytes, 3e6);
  EXPECT_DOUBLE_EQ(summary.goodput, 3e6 / 250e-6);
  EXPECT_DOUBLE_EQ(*summary.ranks[0].second.algorithm_bandwidth, 6e6 / 650e-6);
  EXPECT_DOUBLE_EQ(*summary.ranks[0].second.bus_bandwidth, 3e6 / 650e-6);
}

// A push that starts while a more urgent pull waits takes nothing from it.
TEST(Summary, APushDoesNotOvertakeAPull) {
  std::vector<TraceTask> tasks = ServedLayerTasks(1000);
  tasks.push_back(MakeTransfer("push other", 1, 1000, 7, {kServedBackward}));
  tasks.back().transfer = TransferKind::kPush;
  TimelineMaker maker(0, 2, tasks);
  maker.Step(1, 0, 1000).Move(kServedPush, 1, 100, 100, 100, 200);
  maker.Move(4, 1, 100, 300, 300, 400).Move(kServedPull, 1, 200, 350, 350, 500);
  const TraceSummary summary = Summarize(maker);
  EXPECT_EQ(summary.submission.overtaken, 0u);
  EXPECT_EQ(summary.first_byte.overtaken, 0u);
}

TEST(Summary, CountsWorkOfAnotherStepWhereItHappens) {
  TimelineMaker maker(0, 1, TwoLayerTasks(1000));
  maker.Step(1, 0, 100).Step(2, 100, 200);
  maker.Compute(kForwardA, 1, 0, 60).Compute(kUpdateA, 1, 90, 130).Wait(kUpdateA, 1, 60, 90);
  const TraceSummary summary = Summarize(maker, {.steps = StepRange{2, 2}});
  EXPECT_DOUBLE_EQ(summary.all.update, 30 * kUs);
  EXPECT_DOUBLE_EQ(summary.all.forward, 0);
  EXPECT_DOUBLE_EQ(summary.all.other, 70 * kUs);
  EXPECT_FALSE(summary.all.overlap.has_value());
  EXPECT_DOUBLE_EQ(summary.goodput, 0);
}

TEST(Summary, SilentIsAWaitWithoutATransfer) {
  TimelineMaker maker(0, 2, TwoLayerTasks(1000));
  maker.Step(1, 0, 100).Wait(kUpdateA, 1, 10, 60).Move(kTransferA, 1, 20, 40, 45, 60);
  const TraceSummary summary = Summarize(maker);
  EXPECT_DOUBLE_EQ(summary.all.exposed, 50 * kUs);
  EXPECT_DOUBLE_EQ(summary.all.silent, 30 * kUs);
  EXPECT_DOUBLE_EQ(summary.all.communication, 20 * kUs);
  EXPECT_DOUBLE_EQ(*summary.all.overlap, 1 - 50.0 / 20);
}

TEST(Summary, LeavesOutStepsThatAFlushChanges) {
  const auto steps_with = [](int64_t begin_us, int64_t end_us) {
    Trace trace = TwoRanks(9);
    trace.ranks[1].spans.push_back(
        {SpanKind::kFlush, kNoTask, 5, 0, begin_us * kUs, 0, end_us * kUs});
    return Summarize(std::move(trace)).steps;
  };
  EXPECT_THAT(steps_with(5950, 6000), ElementsAre(3, 4, 7, 8, 9));     // within step 5, before 6
  EXPECT_THAT(steps_with(6000, 6000), ElementsAre(3, 4, 5, 7, 8, 9));  // between 5 and 6
  EXPECT_THAT(steps_with(9990, 9999), ElementsAre(3, 4, 5, 6, 7, 8));
}

TEST(Summary, UsesWhatThereIsWhenNoStepIsSteady) {
  EXPECT_THAT(Summarize(TwoRanks(1)).steps, ElementsAre(1));
  EXPECT_THAT(Summarize(TwoRanks(2)).steps, ElementsAre(1, 2));
  Trace trace = TwoRanks(3);
  trace.ranks[0].spans.push_back({SpanKind::kFlush, kNoTask, 3, 0, 3990 * kUs, 0, 4000 * kUs});
  EXPECT_THAT(Summarize(std::move(trace)).steps, ElementsAre(3));
}

TEST(Summary, LeavesOutStepsThatTheRingLostInPart) {
  Trace trace = TwoRanks(6);
  auto& spans = trace.ranks[0].spans;
  spans.erase(spans.begin(), spans.begin() + 15);  // into step 2
  trace.ranks[0].dropped = 15;
  const TraceSummary summary = Summarize(std::move(trace));
  EXPECT_THAT(summary.steps, ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(summary.left_out, "");
  EXPECT_EQ(summary.dropped, 15u);
}

TEST(Summary, TakesTheStepsAskedFor) {
  const auto with = [](uint64_t first, uint64_t last) {
    return SummarizeTrace(TwoRanks(6), {.steps = StepRange{first, last}});
  };
  EXPECT_THAT(with(1, 2)->steps, ElementsAre(1, 2));
  EXPECT_THAT(with(5, 100)->steps, ElementsAre(5, 6));
  EXPECT_THAT(with(7, 9), FailsWith(StatusCode::kInvalidArgument,
                                    testing::AllOf(HasSubstr("none of the steps 7..9"),
                                                   HasSubstr("it has 1..6"))));
}

TEST(Summary, OfATraceWithoutStepsIsRefused) {
  EXPECT_THAT(SummarizeTrace(TwoRanks(0), {}), FailsWith(StatusCode::kBadData));
}

// Bucket u of the next three is needed by forward task u.
std::vector<TraceTask> ThreeBuckets() {
  std::vector<TraceTask> tasks;
  for (const char* name : {"f0", "f1", "f2"}) tasks.push_back(MakeTask(name, TaskKind::kForward));
  for (uint32_t bucket = 0; bucket < 3; ++bucket) {
    constexpr const char* kNames[] = {"t0", "t1", "t2"};
    tasks.push_back(MakeTransfer(kNames[bucket], bucket, 100 << bucket, bucket, {}));
  }
  tasks.push_back(MakeTransfer("statistics", UINT32_MAX, 16, UINT32_MAX, {}));
  return tasks;
}

TEST(Inversions, AreTransfersOvertakenByLessUrgentOnes) {
  constexpr uint32_t kFirst = 3;
  TimelineMaker maker(1, 2, ThreeBuckets());
  maker.Step(1, 0, 1000);
  // Bucket 0 is ready at 20 and submitted at 90, buckets 2 and 1 in between. Bucket 2 was on its way when
  // bucket 1 became ready, so bucket 1 lost nothing; the statistics count for nothing.
  maker.Move(kFirst + 2, 1, 10, 30, 95, 200).Move(kFirst + 1, 1, 40, 50, 60, 100);
  maker.Move(kFirst + 0, 1, 20, 90, 92, 120).Move(kFirst + 3, 1, 0, 85, 86, 87);
  const TraceSummary summary = Summarize(maker);
  EXPECT_EQ(summary.submission.overtaken, 1u);
  EXPECT_EQ(summary.submission.overtaken_bytes, 100u);
  EXPECT_EQ(summary.submission.bytes, 600u);
  EXPECT_EQ(summary.submission.longest_ns, 30 * kUs);  // bucket 1, of 60-100 what is before 90
  EXPECT_EQ(summary.submission.longest_bytes, 600u);
  EXPECT_EQ(summary.submission.rank, 1);
  EXPECT_EQ(summary.submission.step, 1u);
  EXPECT_EQ(summary.submission.name, "t0");
  // On the wire bucket 2 came last, so only bucket 1 overtook.
  EXPECT_TRUE(summary.first_byte_known);
  EXPECT_EQ(summary.first_byte.overtaken, 1u);
  EXPECT_EQ(summary.first_byte.bytes, 200u);
  EXPECT_EQ(summary.first_byte.longest_ns, 32 * kUs);
  EXPECT_EQ(summary.first_byte.longest_bytes, 200u);
}

TEST(Inversions, AnEarlierStepIsMoreUrgent) {
  TimelineMaker maker(0, 2, ThreeBuckets());
  maker.Step(1, 0, 100).Step(2, 100, 200);
  maker.Move(5, 1, 50, 150, 0, 160).Move(3, 2, 120, 130, 0, 140);
  const TraceSummary summary = Summarize(maker);
  EXPECT_EQ(summary.submission.overtaken, 1u);
  EXPECT_EQ(summary.submission.name, "t2");
  EXPECT_FALSE(summary.first_byte_known);
}

TEST(Inversions, NoneWhenTheUrgentGoesFirst) {
  TimelineMaker maker(0, 2, ThreeBuckets());
  maker.Step(1, 0, 1000);
  maker.Move(5, 1, 0, 10, 10, 50).Move(3, 1, 20, 50, 50, 90).Move(4, 1, 5, 90, 90, 99);
  const TraceSummary summary = Summarize(maker);
  EXPECT_EQ(summary.submission.overtaken, 1u);  // bucket 1 by bucket 2, at 10
  EXPECT_EQ(summary.submission.name, "t1");
  EXPECT_EQ(summary.submission.bytes, 400u);
}

TEST(Summary, NamesTheLongestWaits) {
  const TraceSummary summary = Summarize(TwoRanks(6), {.longest_waits = 3});
  ASSERT_EQ(summary.longest_waits.size(), 3u);
  const LongWait& wait = summary.longest_waits[0];
  EXPECT_EQ(wait.wait_ns, 190 * kUs);
  EXPECT_EQ(wait.step, 3u);
  EXPECT_EQ(wait.task, "update a");
  EXPECT_EQ(wait.forward, "forward a");
  EXPECT_EQ(wait.transfer, "transfer a");
  EXPECT_EQ(wait.cause, CauseKind::kWire);
  EXPECT_DOUBLE_EQ(summary.waits_ns, 8 * 290.0 * kUs);
  EXPECT_DOUBLE_EQ(summary.waits_by_cause_ns[static_cast<int>(CauseKind::kWire)], summary.waits_ns);
}

TEST(SummaryText, FitsAndSaysEverything) {
  Trace trace = TwoRanks(6);
  trace.metadata = {{"scheduler", "none"}, {"config", "many\nlines"}};
  trace.ranks[1].tasks[kTransferA].name = "transfer of " + std::string(90, 'x') + " and 1 more";
  trace.ranks[0].tasks[kTransferA].name = trace.ranks[1].tasks[kTransferA].name;
  const std::string text = SummaryText(Summarize(std::move(trace)), "run.json");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool one_long_word = line.find(std::string(80, 'x')) != std::string::npos;
    EXPECT_TRUE(line.size() <= 100 || one_long_word) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
  EXPECT_THAT(text, testing::Not(HasSubstr("many")));
  for (const char* part : {"2 ranks, 4 steps: 3..6; left out: 1..2 (warm-up)", "scheduler none",
                           "efficiency max(F + B, C) / T = 0.600", "r = C / (F + B) = 0.83",
                           "at submission none", "wire 100 %"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(SummaryJson, IsJson) {
  const auto json = nlohmann::json::parse(SummaryJson(Summarize(TwoRanks(6))));
  EXPECT_EQ(json["steps"], (std::vector<int>{3, 4, 5, 6}));
  EXPECT_DOUBLE_EQ(json["all"]["exposed_ms"], 0.29);
  EXPECT_DOUBLE_EQ(json["schedule_efficiency"], 0.6);
  EXPECT_EQ(json["ranks"].size(), 2u);
  EXPECT_EQ(json["longest_waits"].size(), 10u);
  EXPECT_EQ(json["longest_waits"][0]["cause"], "wire");
  EXPECT_EQ(json["inversions_on_the_wire"]["overtaken"], 0);
}

TEST(Ranges, AreShort) {
  EXPECT_EQ(Ranges({}), "");
  EXPECT_EQ(Ranges({4}), "4");
  EXPECT_EQ(Ranges({1, 2, 3, 5, 7, 8}), "1..3, 5, 7..8");
}

TEST(Quantile, InterpolatesBetweenNeighbours) {
  EXPECT_DOUBLE_EQ(Quantile({}, 0.5), 0);
  EXPECT_DOUBLE_EQ(Quantile({4}, 0.9), 4);
  EXPECT_DOUBLE_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(Quantile({1, 2, 3, 4}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(Quantile({0, 10}, 0.9), 9);
}

}  // namespace
}  // namespace engine::trace
