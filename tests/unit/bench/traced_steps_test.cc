#include "bench/training/traced_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_status.h"

namespace engine::bench {
namespace {

using ::testing::DoubleEq;

constexpr int64_t kMs = 1000000;

// Step s of this rank takes `step_ms[s]`; a forward task of 1 ms, a backward task of 2 ms and a
// wait of 0.5 ms lie in each.
trace::RankTimeline Timeline(int rank, const std::vector<int64_t>& step_ms) {
  trace::RankTimeline timeline{.rank = rank, .world_size = 2};
  timeline.tasks = {{.name = "f", .kind = TaskKind::kForward},
                    {.name = "b", .kind = TaskKind::kBackward},
                    {.name = "t", .kind = TaskKind::kTransfer, .size_bytes = 1000}};
  int64_t now = 77;
  for (size_t step = 0; step < step_ms.size(); ++step) {
    const auto add = [&](trace::SpanKind kind, uint32_t task, int64_t length) {
      timeline.spans.push_back(
          {.kind = kind, .task = task, .step = step, .begin_ns = now, .end_ns = now + length});
    };
    add(trace::SpanKind::kTask, 0, kMs);
    add(trace::SpanKind::kTask, 1, 2 * kMs);
    add(trace::SpanKind::kWait, 1, kMs / 2);
    add(trace::SpanKind::kStep, trace::kNoTask, step_ms[step] * kMs);
    now += step_ms[step] * kMs;
  }
  return timeline;
}

TEST(MeasureSteps, TakesTheSlowestRankOfEachStep) {
  const trace::Trace trace{{}, {Timeline(0, {50, 4, 6, 5}), Timeline(1, {60, 5, 4, 5})}};
  RunResult steps;
  ASSERT_THAT(MeasureSteps(trace, 3, &steps), IsOk());
  EXPECT_THAT(steps.step_seconds, ElementsAre(DoubleEq(5e-3), DoubleEq(6e-3), DoubleEq(5e-3)));
  EXPECT_DOUBLE_EQ(steps.forward_seconds, 1e-3);
  EXPECT_DOUBLE_EQ(steps.backward_seconds, 2e-3);
  EXPECT_DOUBLE_EQ(steps.waited_seconds, 0.5e-3);
  EXPECT_EQ(steps.bytes_per_step, 1000);
}

TEST(MeasureSteps, ARankWithoutAStepIsAnError) {
  const trace::Trace trace{{}, {Timeline(0, {5, 5, 5}), Timeline(1, {5, 5})}};
  RunResult steps;
  EXPECT_THAT(MeasureSteps(trace, 3, &steps),
              FailsWith(StatusCode::kBadData, HasSubstr("rank 1 holds 2 of 3 measured steps")));
  EXPECT_FALSE(MeasureSteps({}, 1, &steps).ok());
}

}  // namespace
}  // namespace engine::bench
