// The trace file of a run (docs/trace.md).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "core/base/rank_context.h"
#include "core/exec/executor.h"
#include "engine/status.h"
#include "tools/trace/trace_format.h"

namespace engine::run {

// What a rank has recorded so far, with its tasks. After a flush.
trace::RankTimeline TimelineOf(const exec::Executor& executor, const RankInfo& rank);

// What a rank tells the time with.
struct TraceClock {
  std::string host;  // ranks with the same read the same clock
  std::function<int64_t()> now_ns;
};
TraceClock MonotonicTraceClock(int32_t rank);  // of the spans

// Collective, at most once per run and after the last step: brings the timelines of all ranks to
// rank 0, which writes them and `metadata` of its own to `path`. The offset of `own` to the clock
// of rank 0 is measured here: 0 on the host of rank 0, else from round trips through the store, so
// known to half of the shortest one.
//
// The other ranks return when their timeline is in the store, and do not hear of errors that rank 0
// has later. kTimeout when a rank that is waited for does nothing for `timeout_ms`, the reason of the
// abort when the run is given up, kStorage on rank 0 when it cannot write. `may_lack_ranks`: some may
// be lost, and the trace is without them.
// `clock`: null for MonotonicTraceClock.
Status WriteRunTrace(const std::string& path, base::RankContext& rank, trace::RankTimeline own,
                     const std::map<std::string, std::string>& metadata, int64_t timeout_ms,
                     bool may_lack_ranks = false, const TraceClock* clock = nullptr);

}  // namespace engine::run
