#include "tools/trace/trace_format.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/trace/chrome_events.h"
#include "tools/trace/timeline_json.h"

namespace engine::trace {
namespace {

using Parsed = nlohmann::json;

RankTimeline OnClockOfRankZero(RankTimeline timeline) {
  MoveToClockOfRankZero(timeline);
  return timeline;
}

// When anything began, on the clock of rank 0.
int64_t FirstTime(const Trace& trace) {
  int64_t first = INT64_MAX;
  for (const RankTimeline& timeline : trace.ranks) {
    for (const Span& span : timeline.spans) {
      first = std::min(first, PhasesOf(span).ready_ns + timeline.clock_offset_ns);
    }
  }
  return first == INT64_MAX ? 0 : first;
}

Status NoTrace(const std::string& path, const std::string& why) {
  return Status::Error(StatusCode::kBadData,
                       "%s is no trace of the engine: %s; give a file that `engine run --trace` "
                       "wrote",
                       path.c_str(), why.c_str());
}

Status CannotRead(const std::string& path) {
  return Status::Error(StatusCode::kMissingInput, "cannot read the trace %s: %s", path.c_str(),
                       strerror(errno));
}

Status CheckRanks(const std::string& path, const Trace& trace) {
  if (trace.ranks.empty()) return NoTrace(path, "it has no ranks");
  int32_t before = -1;
  for (const RankTimeline& timeline : trace.ranks) {
    const Status status = CheckTimeline(timeline);
    if (!status.ok()) return NoTrace(path, status.message());
    if (timeline.rank <= before || timeline.world_size != trace.ranks[0].world_size) {
      return NoTrace(path, "its ranks are not in order");
    }
    before = timeline.rank;
  }
  return {};
}

Result<Parsed> ParseFile(const std::string& path) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"));
  // A folder opens, but cannot be read.
  const int first = file == nullptr ? EOF : std::fgetc(file.get());
  if (file == nullptr || std::ferror(file.get()) != 0) return CannotRead(path);
  if (first == EOF) return NoTrace(path, "it is empty");
  std::ungetc(first, file.get());
  // What viewers need is parsed, but not kept.
  const auto keep = [](int depth, Parsed::parse_event_t event, Parsed& parsed) {
    return event != Parsed::parse_event_t::key || depth != 1 || parsed == "engine";
  };
  Parsed root = Parsed::parse(file.get(), keep, false);
  if (std::ferror(file.get()) != 0) return CannotRead(path);
  if (root.is_discarded()) return NoTrace(path, "it is not valid JSON, or not all of it is there");
  return root;
}

}  // namespace

Status FormatTrace(const Trace& trace, const TextSink& sink) {
  for (const RankTimeline& timeline : trace.ranks) ENGINE_RETURN_IF_ERROR(CheckTimeline(timeline));
  TextWriter out(sink);
  out.Text("{\"traceEvents\":[");
  const int64_t base_ns = FirstTime(trace);
  bool first = true;
  uint64_t flow = 1;
  for (const RankTimeline& timeline : trace.ranks) {
    WriteChromeEvents(OnClockOfRankZero(timeline), base_ns, &first, &flow, out);
  }
  out.Text("\n],\n\"engine\":{\"format\":1,\"metadata\":");
  out.Json(trace.metadata);
  out.Text(",\"ranks\":[");
  const char* separator = "\n";
  for (const RankTimeline& timeline : trace.ranks) {
    out.Text(std::exchange(separator, ",\n"));
    WriteTimeline(timeline, out);
  }
  out.Text("]}}\n");
  return out.Finish();
}

Result<Trace> ReadTrace(const std::string& path) {
  ENGINE_ASSIGN_OR_RETURN(const Parsed root, ParseFile(path));
  Trace trace;
  try {
    const Parsed& engine = Member(root, "engine", Parsed::value_t::object);
    const Parsed& format = Member(engine, "format", Parsed::value_t::number_unsigned);
    if (format != 1) {
      return NoTrace(path, "it has format " + format.dump() + ", and this engine reads 1");
    }
    for (const auto& [key, value] : Member(engine, "metadata", Parsed::value_t::object).items()) {
      if (value.is_string()) trace.metadata[key] = value.get<std::string>();
    }
    for (const Parsed& rank : Member(engine, "ranks", Parsed::value_t::array)) {
      trace.ranks.push_back(TimelineFromJson(rank));
    }
  } catch (const std::exception& error) {
    return NoTrace(path, error.what());
  }
  ENGINE_RETURN_IF_ERROR(CheckRanks(path, trace));
  return trace;
}

std::string SerializeTimeline(const RankTimeline& timeline) {
  std::string text;
  const TextSink append = [&](std::string_view piece) {
    text += piece;
    return Status();
  };
  TextWriter out(append);
  WriteTimeline(timeline, out);
  const Status status = out.Finish();
  ENGINE_CHECK(status.ok(), "%s", status.message());
  return text;
}

Result<RankTimeline> ParseTimeline(std::string_view text) try {
  const RankTimeline timeline = TimelineFromJson(Parsed::parse(text));
  ENGINE_RETURN_IF_ERROR(CheckTimeline(timeline));
  return timeline;
} catch (const std::exception& error) {
  return Status::Error(StatusCode::kBadData, "%zu bytes are no timeline, or not a whole one: %s",
                       text.size(), error.what());
}

}  // namespace engine::trace
