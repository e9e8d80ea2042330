// One rank as events of the Trace Event Format: what viewers show of a trace file.
#pragma once

#include "tools/trace/text_writer.h"
#include "tools/trace/timeline.h"

namespace engine::trace {

// Writes the events of `timeline`, which is on the clock of rank 0, each with a comma in front but
// the first of the file (*first). Times count from `base_ns`. *flow numbers the arrows of a file.
void WriteChromeEvents(const RankTimeline& timeline, int64_t base_ns, bool* first, uint64_t* flow,
                       TextWriter& out);

}  // namespace engine::trace
