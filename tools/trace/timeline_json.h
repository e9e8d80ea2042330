// A timeline as JSON: as it stands in a trace file, and as it travels through the store.
//
//   timeline = {"rank", "world_size", "clock_offset_ns", "clock_error_ns", "dropped",
//               "tasks": [task*], "spans": [span*]}
//   task     = {"name", "kind", "lane", "transfer", "bucket"?, "needed_by"?, "size_bytes",
//               "depends_on"?, "depends_on_last"?}
//   span     = kind, task, step, begin, ready, wire, length     seven numbers of one flat list
//
// A span's `task` is null for none; `ready` and `wire` are after `begin`, or null when the span has
// 0 there.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/trace/text_writer.h"
#include "tools/trace/timeline.h"

namespace engine::trace {

// A task and a span take a line each. `timeline` has been checked.
void WriteTimeline(const RankTimeline& timeline, TextWriter& out);
// Throws std::exception that says what is missing or of another kind. The result is not checked.
RankTimeline TimelineFromJson(const nlohmann::json& json);

// The member `key` of an object, if it is of that type. Throws.
const nlohmann::json& Member(const nlohmann::json& object, const char* key,
                             nlohmann::json::value_t type);

}  // namespace engine::trace
