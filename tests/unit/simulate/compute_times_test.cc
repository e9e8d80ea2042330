#include "tools/simulate/compute_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_status.h"
#include "tests/unit/simulate/toy_step.h"

namespace engine::simulate {
namespace {

// Tasks without dependencies: only their times matter here.
class GraphOfNames {
 public:
  GraphOfNames() = default;
  explicit GraphOfNames(const std::string& forward) { Add(TaskKind::kForward, forward); }

  uint32_t Add(TaskKind kind, const std::string& name, std::vector<exec::TaskSpan> spans = {}) {
    const auto id = static_cast<uint32_t>(graph.tasks.size());
    exec::Task task{.info = {.id = id, .kind = kind, .sequence = id}, .name = name};
    if (kind == TaskKind::kTransfer) task.info.lane = Lane::kIo;
    task.spans = std::move(spans);
    task.tail = kind == TaskKind::kUpdate;
    graph.tasks.push_back(std::move(task));
    return id;
  }
  // See RecordInOrder.
  trace::RankTimeline Record(uint64_t steps, const std::vector<int64_t>& durations,
                             int64_t gap_ns = 0, int64_t between_ns = 0) const {
    trace::RankTimeline timeline;
    test::RecordInOrder(
        graph, steps, [&](const exec::Task& task) { return durations[task.info.id]; }, gap_ns,
        between_ns, &timeline);
    return timeline;
  }

  exec::TaskGraph graph;
};

// From steps of tasks that last so long.
ComputeTimes Learned(const GraphOfNames& names, uint64_t steps,
                     const std::vector<int64_t>& durations, int64_t gap_ns = 0,
                     int64_t between_ns = 0) {
  ComputeTimes times;
  EXPECT_THAT(times.Learn(names.Record(steps, durations, gap_ns, between_ns), names.graph, 1),
              IsOk());
  return times;
}

TEST(ComputeTimesTest, NamedTasksLastAsTheyDid) {
  GraphOfNames recorded("forward fc");
  recorded.Add(TaskKind::kTransfer, "transfer fc");
  recorded.Add(TaskKind::kBackward, "backward fc");
  const ComputeTimes times = Learned(recorded, 5, {100, 5000, 300});

  GraphOfNames other;  // another plan: other ids
  other.Add(TaskKind::kBackward, "backward fc");
  other.Add(TaskKind::kTransfer, "transfer half of fc");
  other.Add(TaskKind::kForward, "forward fc");
  EXPECT_THAT(*times.For(other.graph), ElementsAre(300, 0, 100));
}

TEST(ComputeTimesTest, UpdatesScaleWithTheirElements) {
  GraphOfNames recorded;
  recorded.Add(TaskKind::kUpdate, "update a", {{.parameter = 0, .count = 100}});
  recorded.Add(TaskKind::kUpdate, "update b", {{.parameter = 1, .count = 100}});
  const ComputeTimes times = Learned(recorded, 3, {1000, 4000});

  GraphOfNames other;
  other.Add(TaskKind::kUpdate, "update a[0..]", {{.parameter = 0, .count = 30}});
  other.Add(TaskKind::kUpdate, "update a and b",
            {{.parameter = 0, .offset = 30, .count = 70}, {.parameter = 1, .count = 50}});
  other.Add(TaskKind::kUpdate, "update c", {{.parameter = 2, .count = 10}});  // the mean of all
  EXPECT_THAT(*times.For(other.graph), ElementsAre(300, 700 + 2000, 250));
}

TEST(ComputeTimesTest, HooksAreToldApart) {
  GraphOfNames recorded;
  recorded.graph.tasks.reserve(4);
  const std::vector<exec::TaskSpan> span = {{.parameter = 0, .count = 10}};
  for (const exec::HookWork work :
       {exec::HookWork::kObserve, exec::HookWork::kApply, exec::HookWork::kAllObserved}) {
    exec::Task& task = recorded.graph.tasks[recorded.Add(
        TaskKind::kHook, "clip",
        work == exec::HookWork::kAllObserved ? std::vector<exec::TaskSpan>() : span)];
    task.hook = 0;
    task.hook_work = work;
    task.tail = true;
  }
  const ComputeTimes times = Learned(recorded, 3, {10, 20, 5});
  EXPECT_THAT(*times.For(recorded.graph), ElementsAre(10, 20, 5));
}

// What a hook has packed comes from every rank, and is unpacked so many times.
TEST(ComputeTimesTest, UnpackingTakesItsTimeForEachRank) {
  const auto unpack = [](int32_t ranks) {
    GraphOfNames names;
    exec::Task& task =
        names.graph
            .tasks[names.Add(TaskKind::kHook, "topk unpack a", {{.parameter = 0, .count = 10}})];
    task.hook = 0;
    task.hook_work = exec::HookWork::kUnpack;
    task.blocks = ranks;
    task.tail = true;
    return names;
  };
  for (const int32_t recorded : {1, 2}) {
    const ComputeTimes times = Learned(unpack(recorded), 3, {100 * recorded});
    EXPECT_THAT(*times.For(unpack(4).graph), ElementsAre(400)) << recorded;
  }
}

TEST(ComputeTimesTest, OutliersAndWarmUpDoNotCount) {
  const GraphOfNames recorded("forward fc");
  trace::RankTimeline timeline = recorded.Record(7, {100});
  for (trace::Span& span : timeline.spans) {
    if (span.kind == trace::SpanKind::kTask && (span.step <= 2 || span.step == 5))
      span.end_ns += 9000;
  }
  ComputeTimes times;
  ASSERT_THAT(times.Learn(timeline, recorded.graph, 3), IsOk());
  EXPECT_THAT(*times.For(recorded.graph), ElementsAre(100));
}

TEST(ComputeTimesTest, RanksAreAveraged) {
  const GraphOfNames recorded("forward fc");
  ComputeTimes times = Learned(recorded, 3, {100});
  ASSERT_THAT(times.Learn(recorded.Record(3, {140}), recorded.graph, 1), IsOk());
  EXPECT_THAT(*times.For(recorded.graph), ElementsAre(120));
}

TEST(ComputeTimesTest, OverheadsAreTheGaps) {
  GraphOfNames recorded("forward fc");
  recorded.Add(TaskKind::kBackward, "backward fc");
  const ComputeTimes times = Learned(recorded, 5, {100, 300}, 7, 50);
  EXPECT_EQ(times.task_overhead_ns(), 7);
  EXPECT_EQ(times.step_overhead_ns(), 50);
}

TEST(ComputeTimesTest, AnotherModelIsRefused) {
  const GraphOfNames recorded("forward fc1"), other("forward fc2");
  EXPECT_THAT(ComputeTimes().Learn(recorded.Record(3, {100}), other.graph, 1),
              FailsWith(StatusCode::kBadData,
                        HasSubstr("'forward fc1' where the configuration gives 'forward fc2'")));
  EXPECT_THAT(Learned(recorded, 3, {100}).For(other.graph).status().message(),
              HasSubstr("the time of 'forward fc2'"));
}

TEST(ComputeTimesTest, TooFewStepsAreRefused) {
  const GraphOfNames recorded("forward fc");
  EXPECT_THAT(ComputeTimes().Learn(recorded.Record(2, {100}), recorded.graph, 3),
              FailsWith(StatusCode::kBadData, HasSubstr("'forward fc' from step 3 on")));
}

}  // namespace
}  // namespace engine::simulate
