// Timelines as they come from a rank or a file: whether their content can be, and their clocks.
#pragma once

#include <cstdint>

#include "engine/status.h"
#include "tools/trace/timeline.h"

namespace engine::trace {

// Whether ids, kinds and times are in range, so that whoever reads the timeline need not ask again.
// `spans` end after they begin; dependencies of a step go to smaller ids. kBadData names what is
// wrong.
Status CheckTimeline(const RankTimeline& timeline);

// Moves all times to the clock of rank 0, so that the offset is 0. `timeline` has been checked.
void MoveToClockOfRankZero(RankTimeline& timeline);

// A transfer's way, put in order where clocks or a communicator say otherwise:
// ready <= begin <= wire <= end.
struct TransferPhases {
  int64_t ready_ns = 0;
  int64_t begin_ns = 0;
  int64_t wire_ns = 0;  // begin_ns if the communicator does not say
  int64_t end_ns = 0;
};
TransferPhases PhasesOf(const Span& span);

}  // namespace engine::trace
