#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/trace/trace_format.h"

namespace engine {
namespace {

using Json = nlohmann::json;

// Takes values out of JSON. After the first that is missing or of another kind, all read as 0 and
// what() names it.
class Values {
 public:
  const std::string& what() const { return what_; }
  bool ok() const { return what_.empty(); }

  const Json& Member(const Json& object, const char* key, Json::value_t type) {
    static const Json nothing;
    if (!object.is_object()) return Fail(key), nothing;
    const auto found = object.find(key);
    if (found == object.end() || found->type() != type) return Fail(key), nothing;
    return *found;
  }
  std::string Text(const Json& object, const char* key) {
    const Json& text = Member(object, key, Json::value_t::string);
    return ok() ? text.get<std::string>() : "";
  }
  template <typename T>
  T Number(const Json& value, const char* what) {
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number <= static_cast<uint64_t>(std::numeric_limits<T>::max())) {
        return static_cast<T>(number);
      }
    } else if (value.is_number_integer() && std::is_signed_v<T>) {
      const auto number = value.get<int64_t>();
      if (number >= static_cast<int64_t>(std::numeric_limits<T>::min())) {
        return static_cast<T>(number);
      }
    }
    return Fail(what), T{};
  }
  template <typename T>
  T MemberNumber(const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || found == object.end()) return Fail(key), T{};
    return Number<T>(*found, key);
  }
  template <typename T>
  T OptionalNumber(const Json& object, const char* key, T otherwise) {
    return object.is_object() && object.contains(key) ? MemberNumber<T>(object, key) : otherwise;
  }
  std::vector<uint32_t> OptionalIds(const Json& object, const char* key) {
    std::vector<uint32_t> ids;
    if (!object.is_object() || !object.contains(key)) return ids;
    for (const Json& id : Member(object, key, Json::value_t::array)) {
      ids.push_back(Number<uint32_t>(id, key));
    }
    return ids;
  }
  // The value of `Enum` up to `last` whose Name is there.
  template <typename Enum>
  Enum Named(const Json& object, const char* key, Enum last) {
    const std::string name = Text(object, key);
    for (int32_t value = 0; ok() && value <= static_cast<int32_t>(last); ++value) {
      if (name == Name(static_cast<Enum>(value))) return static_cast<Enum>(value);
    }
    return Fail(key), Enum{};
  }

 private:
  void Fail(const char* what) {
    if (what_.empty()) what_ = what;
  }

  std::string what_;
};

TraceTask ReadTask(const Json& json, Values& values) {
  TraceTask task;
  task.name = values.Text(json, "name");
  task.kind = values.Named(json, "kind", TaskKind::kUpdate);
  task.lane = values.Text(json, "lane") == "io" ? Lane::kIo : Lane::kCompute;
  task.transfer = values.Named(json, "transfer", TransferKind::kPull);
  task.unit = values.OptionalNumber<uint32_t>(json, "unit", UINT32_MAX);
  task.needed_by = values.OptionalNumber<uint32_t>(json, "needed_by", UINT32_MAX);
  task.size_bytes = values.MemberNumber<uint64_t>(json, "size_bytes");
  task.depends_on = values.OptionalIds(json, "depends_on");
  task.depends_on_last = values.OptionalIds(json, "depends_on_last");
  return task;
}

constexpr size_t kSpanNumbers = 7;

Span ReadSpan(const Json* numbers, Values& values) {
  const auto number = [&](size_t i) { return values.Number<int64_t>(numbers[i], "spans"); };
  // Wraps around instead of overflowing; CheckTimeline refuses such times.
  const auto after = [&](int64_t begin_ns, size_t i) {
    return static_cast<int64_t>(static_cast<uint64_t>(begin_ns) + static_cast<uint64_t>(number(i)));
  };
  Span span;
  span.kind = static_cast<SpanKind>(values.Number<uint32_t>(numbers[0], "spans"));
  if (!numbers[1].is_null()) span.task = values.Number<uint32_t>(numbers[1], "spans");
  span.step = values.Number<uint64_t>(numbers[2], "spans");
  span.begin_ns = number(3);
  if (!numbers[4].is_null()) span.ready_ns = after(span.begin_ns, 4);
  if (!numbers[5].is_null()) span.wire_ns = after(span.begin_ns, 5);
  span.end_ns = after(span.begin_ns, 6);
  return span;
}

RankTimeline ReadRank(const Json& json, Values& values) {
  RankTimeline timeline;
  timeline.rank = values.MemberNumber<int32_t>(json, "rank");
  timeline.world_size = values.MemberNumber<int32_t>(json, "world_size");
  timeline.clock_offset_ns = values.MemberNumber<int64_t>(json, "clock_offset_ns");
  timeline.clock_error_ns = values.MemberNumber<int64_t>(json, "clock_error_ns");
  timeline.dropped = values.MemberNumber<uint64_t>(json, "dropped");
  for (const Json& task : values.Member(json, "tasks", Json::value_t::array)) {
    timeline.tasks.push_back(ReadTask(task, values));
  }
  const Json& spans = values.Member(json, "spans", Json::value_t::array);
  if (spans.size() % kSpanNumbers != 0) values.Number<uint32_t>(Json(), "spans");
  for (size_t i = 0; values.ok() && i < spans.size(); i += kSpanNumbers) {
    timeline.spans.push_back(ReadSpan(&spans[i], values));
  }
  return timeline;
}

Status NoTrace(const std::string& path, const std::string& why) {
  return Status::Error(StatusCode::kBadData,
                       "%s is no trace of the engine: %s; give a file that `engine run --trace` "
                       "wrote",
                       path.c_str(), why.c_str());
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

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

Result<Trace> ReadTrace(const std::string& path) {
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rbe"));
  // A folder opens, but cannot be read.
  const int first = file == nullptr ? EOF : std::fgetc(file.get());
  if (file == nullptr || std::ferror(file.get()) != 0) {
    return Status::Error(StatusCode::kMissingInput, "cannot read the trace %s: %s", path.c_str(),
                         strerror(errno));
  }
  if (first == EOF) return NoTrace(path, "it is empty");
  std::ungetc(first, file.get());
  // What viewers need is parsed, but not kept.
  const auto keep = [](int depth, Json::parse_event_t event, Json& parsed) {
    return event != Json::parse_event_t::key || depth != 1 || parsed == "engine";
  };
  const Json root = Json::parse(file.get(), keep, false);
  if (std::ferror(file.get()) != 0) {
    return Status::Error(StatusCode::kMissingInput, "cannot read the trace %s: %s", path.c_str(),
                         strerror(errno));
  }
  if (root.is_discarded()) return NoTrace(path, "it is not valid JSON, or not all of it is there");

  Values values;
  const Json& engine = values.Member(root, "engine", Json::value_t::object);
  const auto format = values.MemberNumber<int64_t>(engine, "format");
  if (values.ok() && format != 1) {
    return NoTrace(path, "it has format " + std::to_string(format) + ", and this engine reads 1");
  }
  Trace trace;
  for (const auto& [key, value] :
       values.Member(engine, "metadata", Json::value_t::object).items()) {
    if (value.is_string()) trace.metadata[key] = value.get<std::string>();
  }
  for (const Json& rank : values.Member(engine, "ranks", Json::value_t::array)) {
    trace.ranks.push_back(ReadRank(rank, values));
  }
  if (!values.ok()) return NoTrace(path, "'" + values.what() + "' is missing or of another kind");
  ENGINE_RETURN_IF_ERROR(CheckRanks(path, trace));
  return trace;
}

}  // namespace engine
