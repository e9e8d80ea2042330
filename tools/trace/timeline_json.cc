#include "tools/trace/timeline_json.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace engine::trace {
namespace {

using Parsed = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kSpanNumbers = 7;

[[noreturn]] void Refuse(const char* key) {
  throw std::runtime_error(std::string("'") + key + "' is missing or of another kind");
}

}  // namespace

const Parsed& Member(const Parsed& object, const char* key, Parsed::value_t type) {
  const auto found = object.find(key);
  if (found == object.end() || found->type() != type) Refuse(key);
  return *found;
}

namespace {

// The value itself, if it is one of T.
template <typename T>
T Value(const Parsed& json, const char* key) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (json.is_string()) return json.get<std::string>();
  } else if (json.is_number_unsigned()) {
    if (std::in_range<T>(json.get<uint64_t>())) return static_cast<T>(json.get<uint64_t>());
  } else if (json.is_number_integer()) {
    if (std::in_range<T>(json.get<int64_t>())) return static_cast<T>(json.get<int64_t>());
  }
  Refuse(key);
}

template <typename T>
T Field(const Parsed& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) Refuse(key);
  return Value<T>(*found, key);
}

// The value of `Enum` up to `last` whose Name is there.
template <typename Enum>
Enum Named(const Parsed& object, const char* key, Enum last) {
  const auto name = Field<std::string>(object, key);
  for (int32_t value = 0; value <= static_cast<int32_t>(last); ++value) {
    if (name == Name(static_cast<Enum>(value))) return static_cast<Enum>(value);
  }
  Refuse(key);
}

std::vector<uint32_t> Ids(const Parsed& object, const char* key) {
  std::vector<uint32_t> ids;
  if (!object.contains(key)) return ids;
  for (const Parsed& id : Member(object, key, Parsed::value_t::array)) {
    ids.push_back(Value<uint32_t>(id, key));
  }
  return ids;
}

OrderedJson ToJson(const TraceTask& task) {
  OrderedJson json = {{"name", task.name},
                      {"kind", Name(task.kind)},
                      {"lane", task.lane == Lane::kIo ? "io" : "compute"},
                      {"transfer", Name(task.transfer)}};
  if (task.bucket != UINT32_MAX) json["bucket"] = task.bucket;
  if (task.needed_by != UINT32_MAX) json["needed_by"] = task.needed_by;
  json["size_bytes"] = task.size_bytes;
  if (!task.depends_on.empty()) json["depends_on"] = task.depends_on;
  if (!task.depends_on_last.empty()) json["depends_on_last"] = task.depends_on_last;
  return json;
}

TraceTask ReadTask(const Parsed& json) {
  TraceTask task;
  task.name = Field<std::string>(json, "name");
  task.kind = Named(json, "kind", TaskKind::kUpdate);
  task.lane = Field<std::string>(json, "lane") == "io" ? Lane::kIo : Lane::kCompute;
  task.transfer = Named(json, "transfer", TransferKind::kPull);
  for (const char* const key : {"bucket", "unit"}) {  // "unit" in traces of before
    if (json.contains(key)) task.bucket = Field<uint32_t>(json, key);
  }
  if (json.contains("needed_by")) task.needed_by = Field<uint32_t>(json, "needed_by");
  task.size_bytes = Field<uint64_t>(json, "size_bytes");
  task.depends_on = Ids(json, "depends_on");
  task.depends_on_last = Ids(json, "depends_on_last");
  return task;
}

// Without the brackets of the list.
std::string SpanText(const Span& span) {
  const auto after = [&](int64_t time_ns) {
    return time_ns == 0 ? OrderedJson() : OrderedJson(time_ns - span.begin_ns);
  };
  const std::string list =
      OrderedJson::array({static_cast<uint32_t>(span.kind),
                          span.task == kNoTask ? OrderedJson() : OrderedJson(span.task), span.step,
                          span.begin_ns, after(span.ready_ns), after(span.wire_ns),
                          span.end_ns - span.begin_ns})
          .dump();
  return list.substr(1, list.size() - 2);
}

Span ReadSpan(const Parsed* numbers) {
  const auto number = [&](size_t i) { return Value<int64_t>(numbers[i], "spans"); };
  // Wraps around instead of overflowing; CheckTimeline refuses such times.
  const auto after = [&](int64_t begin_ns, size_t i) {
    return static_cast<int64_t>(static_cast<uint64_t>(begin_ns) + static_cast<uint64_t>(number(i)));
  };
  Span span;
  span.kind = static_cast<SpanKind>(Value<uint32_t>(numbers[0], "spans"));
  if (!numbers[1].is_null()) span.task = Value<uint32_t>(numbers[1], "spans");
  span.step = Value<uint64_t>(numbers[2], "spans");
  span.begin_ns = number(3);
  if (!numbers[4].is_null()) span.ready_ns = after(span.begin_ns, 4);
  if (!numbers[5].is_null()) span.wire_ns = after(span.begin_ns, 5);
  span.end_ns = after(span.begin_ns, 6);
  return span;
}

}  // namespace

void WriteTimeline(const RankTimeline& timeline, TextWriter& out) {
  std::string head = OrderedJson({{"rank", timeline.rank},
                                  {"world_size", timeline.world_size},
                                  {"clock_offset_ns", timeline.clock_offset_ns},
                                  {"clock_error_ns", timeline.clock_error_ns},
                                  {"dropped", timeline.dropped}})
                         .dump();
  head.pop_back();
  out.Text(head + ",\"tasks\":[");
  const char* separator = "\n";
  for (const TraceTask& task : timeline.tasks) {
    out.Text(std::exchange(separator, ",\n"));
    out.Json(ToJson(task));
  }
  out.Text("],\"spans\":[");
  separator = "\n";
  for (const Span& span : timeline.spans) {
    out.Text(std::exchange(separator, ",\n"));
    out.Text(SpanText(span));
  }
  out.Text("]}");
}

RankTimeline TimelineFromJson(const Parsed& json) {
  RankTimeline timeline;
  timeline.rank = Field<int32_t>(json, "rank");
  timeline.world_size = Field<int32_t>(json, "world_size");
  timeline.clock_offset_ns = Field<int64_t>(json, "clock_offset_ns");
  timeline.clock_error_ns = Field<int64_t>(json, "clock_error_ns");
  timeline.dropped = Field<uint64_t>(json, "dropped");
  for (const Parsed& task : Member(json, "tasks", Parsed::value_t::array)) {
    timeline.tasks.push_back(ReadTask(task));
  }
  const Parsed& spans = Member(json, "spans", Parsed::value_t::array);
  if (spans.size() % kSpanNumbers != 0) Refuse("spans");
  for (size_t i = 0; i < spans.size(); i += kSpanNumbers) {
    timeline.spans.push_back(ReadSpan(&spans[i]));
  }
  return timeline;
}

}  // namespace engine::trace
