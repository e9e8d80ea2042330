// The trace file: JSON that Perfetto and chrome://tracing open, and `engine trace` reads back
// without loss (docs/trace.md).
//
//   trace = {"traceEvents": [event*],
//            "engine": {"format": 1, "metadata": {}, "ranks": [timeline*]}}
//
// The events come first: a viewer need not know the rest. timeline_json.h has the timelines.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/status.h"
#include "tools/trace/timeline_times.h"

namespace engine::trace {

// A run.
struct Trace {
  std::map<std::string, std::string> metadata;
  std::vector<RankTimeline> ranks;  // ascending by rank
};

// Takes the text of a file piece by piece.
using TextSink = std::function<Status(std::string_view)>;

// Gives the file to `sink`, in pieces of about 64 KiB. The first error of `sink`; kBadData when
// CheckTimeline refuses a timeline.
Status FormatTrace(const Trace& trace, const TextSink& sink);

// kMissingInput when the file cannot be read, kBadData when it is no trace that FormatTrace wrote.
Result<Trace> ReadTrace(const std::string& path);

// One timeline as text, for the way through the store: the same JSON as in a file. It has been
// checked.
std::string SerializeTimeline(const RankTimeline& timeline);

// kBadData when `text` is anything but a whole timeline, or one that CheckTimeline refuses. Memory
// grows with the text that is there.
Result<RankTimeline> ParseTimeline(std::string_view text);

}  // namespace engine::trace
