// Timelines made by hand, in microseconds.
#pragma once

#include <utility>
#include <vector>

#include "tools/trace/trace_format.h"

namespace engine::trace {

constexpr int64_t kUs = 1000;

inline TraceTask MakeTask(const char* name, TaskKind kind, std::vector<uint32_t> depends_on = {},
                          std::vector<uint32_t> depends_on_last = {}) {
  TraceTask task;
  task.name = name;
  task.kind = kind;
  task.lane = kind == TaskKind::kTransfer ? Lane::kIo : Lane::kCompute;
  task.depends_on = std::move(depends_on);
  task.depends_on_last = std::move(depends_on_last);
  return task;
}

inline TraceTask MakeTransfer(const char* name, uint32_t bucket, uint64_t bytes, uint32_t needed_by,
                              std::vector<uint32_t> depends_on) {
  TraceTask task = MakeTask(name, TaskKind::kTransfer, std::move(depends_on));
  task.bucket = bucket;
  task.size_bytes = bytes;
  task.needed_by = needed_by;
  return task;
}

// A model of two layers: a is used first, and its gradient is complete last.
enum TwoLayers : uint32_t {
  kForwardA = 0,
  kForwardB,
  kBackwardB,
  kTransferB,
  kBackwardA,
  kTransferA,
  kUpdateB,
  kUpdateA,
};

inline std::vector<TraceTask> TwoLayerTasks(uint64_t bytes) {
  return {MakeTask("forward a", TaskKind::kForward, {}, {kUpdateA}),
          MakeTask("forward b", TaskKind::kForward, {kForwardA}, {kUpdateB}),
          MakeTask("backward b", TaskKind::kBackward, {kForwardB}),
          MakeTransfer("transfer b", 0, bytes, kForwardB, {kBackwardB}),
          MakeTask("backward a", TaskKind::kBackward, {kBackwardB}),
          MakeTransfer("transfer a", 1, bytes, kForwardA, {kBackwardA}),
          MakeTask("update b", TaskKind::kUpdate, {kTransferB}),
          MakeTask("update a", TaskKind::kUpdate, {kTransferA})};
}

// One layer whose parameters live at servers.
enum ServedLayer : uint32_t { kServedForward = 0, kServedBackward, kServedPush, kServedPull };

inline std::vector<TraceTask> ServedLayerTasks(uint64_t bytes) {
  std::vector<TraceTask> tasks = {
      MakeTask("forward a", TaskKind::kForward, {}, {kServedPull}),
      MakeTask("backward a", TaskKind::kBackward, {kServedForward}),
      MakeTransfer("push a", 0, bytes, kServedForward, {kServedBackward}),
      MakeTransfer("pull a", 0, bytes, kServedForward, {kServedPush})};
  tasks[kServedPush].transfer = TransferKind::kPush;
  tasks[kServedPull].transfer = TransferKind::kPull;
  return tasks;
}

class TimelineMaker {
 public:
  TimelineMaker(int32_t rank, int32_t world_size, std::vector<TraceTask> tasks) {
    timeline.rank = rank;
    timeline.world_size = world_size;
    timeline.tasks = std::move(tasks);
  }

  TimelineMaker& Compute(uint32_t task, uint64_t step, int64_t begin_us, int64_t end_us) {
    return Add({SpanKind::kTask, task, step, begin_us * kUs, begin_us * kUs, 0, end_us * kUs});
  }
  TimelineMaker& Move(uint32_t task, uint64_t step, int64_t ready_us, int64_t begin_us,
                      int64_t wire_us, int64_t end_us) {
    return Add(
        {SpanKind::kTask, task, step, ready_us * kUs, begin_us * kUs, wire_us * kUs, end_us * kUs});
  }
  TimelineMaker& Wait(uint32_t task, uint64_t step, int64_t begin_us, int64_t end_us) {
    return Add({SpanKind::kWait, task, step, 0, begin_us * kUs, 0, end_us * kUs});
  }
  TimelineMaker& Step(uint64_t step, int64_t begin_us, int64_t end_us) {
    return Add({SpanKind::kStep, kNoTask, step, 0, begin_us * kUs, 0, end_us * kUs});
  }
  TimelineMaker& Flush(uint64_t step, int64_t begin_us, int64_t end_us) {
    return Add({SpanKind::kFlush, kNoTask, step, 0, begin_us * kUs, 0, end_us * kUs});
  }

  RankTimeline timeline;

 private:
  TimelineMaker& Add(const Span& span) {
    timeline.spans.push_back(span);
    return *this;
  }
};

// Steps 1..`steps` of two layers, 1000 us each, as a scheduler without order runs them:
//
//   compute  fA 0-100 | fB 100-200 | bB 200-400 | bA 400-600 | uB 700-710 | wait 710-900 | uA
//   900-920 wire     B 400-700 | A 700-900 (ready and submitted at 600)
//
// The rest of a step, 600-700 and 920-1000, is a wait for update b and the engine itself.
inline RankTimeline TwoLayerRun(int32_t rank, uint64_t steps, uint64_t bytes = 3000000) {
  TimelineMaker run(rank, 2, TwoLayerTasks(bytes));
  for (uint64_t step = 1; step <= steps; ++step) {
    const auto t = static_cast<int64_t>(step) * 1000;
    run.Compute(kForwardA, step, t, t + 100).Compute(kForwardB, step, t + 100, t + 200);
    run.Compute(kBackwardB, step, t + 200, t + 400).Compute(kBackwardA, step, t + 400, t + 600);
    run.Wait(kUpdateB, step, t + 600, t + 700)
        .Move(kTransferB, step, t + 400, t + 400, t + 400, t + 700);
    run.Compute(kUpdateB, step, t + 700, t + 710).Wait(kUpdateA, step, t + 710, t + 900);
    run.Move(kTransferA, step, t + 600, t + 600, t + 700, t + 900);
    run.Compute(kUpdateA, step, t + 900, t + 920).Step(step, t, t + 1000);
  }
  return std::move(run.timeline);
}

inline Trace TwoRanks(uint64_t steps) {
  return {.metadata = {{"config", "a: 1\nb: \"x\"\n"}, {"scheduler", "none"}},
          .ranks = {TwoLayerRun(0, steps), TwoLayerRun(1, steps)}};
}

inline bool operator==(const Span& a, const Span& b) {
  return a.kind == b.kind && a.task == b.task && a.step == b.step && a.ready_ns == b.ready_ns &&
         a.begin_ns == b.begin_ns && a.wire_ns == b.wire_ns && a.end_ns == b.end_ns;
}
inline bool operator==(const TraceTask& a, const TraceTask& b) {
  return a.name == b.name && a.kind == b.kind && a.lane == b.lane && a.transfer == b.transfer &&
         a.bucket == b.bucket && a.needed_by == b.needed_by && a.size_bytes == b.size_bytes &&
         a.depends_on == b.depends_on && a.depends_on_last == b.depends_on_last;
}
inline bool operator==(const RankTimeline& a, const RankTimeline& b) {
  return a.rank == b.rank && a.world_size == b.world_size &&
         a.clock_offset_ns == b.clock_offset_ns && a.clock_error_ns == b.clock_error_ns &&
         a.dropped == b.dropped && a.tasks == b.tasks && a.spans == b.spans;
}

}  // namespace engine::trace
