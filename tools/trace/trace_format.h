// The trace file: JSON that Perfetto and chrome://tracing open, and `engine trace` reads back
// without loss (docs/trace.md).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/trace/timeline.h"

namespace engine {

// Takes the text of a file piece by piece.
using TextSink = std::function<Status(std::string_view)>;

// Gives the file to `sink`, in pieces of about 64 KiB. The first error of `sink`; kBadData when
// CheckTimeline refuses a timeline.
Status FormatTrace(const Trace& trace, const TextSink& sink);

// kMissingInput when the file cannot be read, kBadData when it is no trace that FormatTrace wrote.
Result<Trace> ReadTrace(const std::string& path);

}  // namespace engine
