// A timeline as bytes, for the way through the store.
//
//   timeline = "ETL1" rank world_size offset error dropped
//              task_count task* span_count span*
//   task     = name kind lane transfer unit needed_by size_bytes tasks tasks
//   name     = size byte*
//   tasks    = count id*                     depends_on, then depends_on_last
//   span     = flags task step begin ready [wire] length
//   flags    = byte                          SpanKind + 4 if it has wire_ns (else that is 0)
//
// Every number but flags is a LEB128 varint; offset, step, begin, ready, wire and length are zigzag
// coded. `step` and `begin` count from those of the span before, ready and wire from begin, and
// length is end - begin: so most spans take about 15 bytes.
#pragma once

#include <string>
#include <string_view>

#include "core/trace/timeline.h"

namespace engine {

std::string SerializeTimeline(const RankTimeline& timeline);

// kBadData when `bytes` is anything but a whole timeline, or one that CheckTimeline refuses. Memory
// grows with the bytes that are there, never with a count that they only claim.
Result<RankTimeline> ParseTimeline(std::string_view bytes);

}  // namespace engine
