// The spans of one rank together with what they mean, as they travel to rank 0 and to a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/trace/recorder.h"
#include "engine/scheduler.h"

namespace engine::trace {

// A TaskInfo that owns its name.
struct TraceTask {
  std::string name;
  TaskKind kind = TaskKind::kForward;
  Lane lane = Lane::kCompute;
  TransferKind transfer = TransferKind::kAllReduce;  // kTransfer
  uint32_t bucket = UINT32_MAX;                      // kTransfer
  uint32_t needed_by = UINT32_MAX;                   // see TaskInfo
  uint64_t size_bytes = 0;                           // kTransfer
  std::vector<uint32_t> depends_on;                  // tasks of the same step, and
  std::vector<uint32_t> depends_on_last;             // of the step before
};

struct RankTimeline {
  int32_t rank = 0;
  int32_t world_size = 1;
  int64_t clock_offset_ns = 0;   // added to its times gives the clock of rank 0
  int64_t clock_error_ns = 0;    // at most so much too large or small; 0 on the host of rank 0
  uint64_t dropped = 0;          // spans that the ring had no room for
  std::vector<TraceTask> tasks;  // by id
  std::vector<Span> spans;
};

}  // namespace engine::trace
