#include "tools/trace/serialize.h"

#include <utility>

namespace engine {
namespace {

constexpr std::string_view kMagic = "ETL1";
constexpr uint8_t kHasWire = 4;
// A task or span is no shorter, which bounds what a count can honestly claim.
constexpr size_t kMinTaskBytes = 9;
constexpr size_t kMinSpanBytes = 6;

// Differences wrap around, so that every pair of times survives the way.
int64_t Minus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
int64_t Plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

class Writer {
 public:
  void Byte(uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void Unsigned(uint64_t value) {
    for (; value >= 0x80; value >>= 7) Byte(static_cast<uint8_t>(value | 0x80));
    Byte(static_cast<uint8_t>(value));
  }
  void Signed(int64_t value) {
    Unsigned((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
  }
  void Text(std::string_view text) {
    Unsigned(text.size());
    out_.append(text);
  }
  void Ids(const std::vector<uint32_t>& ids) {
    Unsigned(ids.size());
    for (uint32_t id : ids) Unsigned(id);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_{kMagic};
};

// After the first thing that is not there, everything reads as 0 and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  bool ok() const { return ok_; }
  bool at_end() const { return left_.empty(); }

  std::string_view Bytes(size_t size) {
    if (!ok_ || size > left_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return bytes;
  }
  uint8_t Byte() {
    const std::string_view byte = Bytes(1);
    return byte.empty() ? 0 : static_cast<uint8_t>(byte[0]);
  }
  uint64_t Unsigned() {
    uint64_t value = 0;
    for (int shift = 0; ok_; shift += 7) {
      const uint8_t byte = Byte();
      if (shift == 63 && byte > 1) ok_ = false;  // more than 64 bits
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return ok_ ? value : 0;
  }
  int64_t Signed() {
    const uint64_t value = Unsigned();
    return static_cast<int64_t>((value >> 1) ^ (~(value & 1) + 1));
  }
  uint32_t Unsigned32() {
    const uint64_t value = Unsigned();
    if (value > UINT32_MAX) ok_ = false;
    return static_cast<uint32_t>(value);
  }
  int32_t Positive32() {
    const uint64_t value = Unsigned();
    if (value > INT32_MAX) ok_ = false;
    return static_cast<int32_t>(value);
  }
  // Of things that take at least `min_bytes` each.
  size_t Count(size_t min_bytes) {
    const uint64_t count = Unsigned();
    if (count > left_.size() / min_bytes) ok_ = false;
    return ok_ ? static_cast<size_t>(count) : 0;
  }
  std::vector<uint32_t> Ids() {
    std::vector<uint32_t> ids(Count(1));
    for (uint32_t& id : ids) id = Unsigned32();
    return ids;
  }

 private:
  std::string_view left_;
  bool ok_ = true;
};

void WriteTask(const TraceTask& task, Writer& out) {
  out.Text(task.name);
  out.Unsigned(static_cast<uint32_t>(task.kind));
  out.Unsigned(static_cast<uint32_t>(task.lane));
  out.Unsigned(static_cast<uint32_t>(task.transfer));
  out.Unsigned(task.unit);
  out.Unsigned(task.needed_by);
  out.Unsigned(task.size_bytes);
  out.Ids(task.depends_on);
  out.Ids(task.depends_on_last);
}

TraceTask ReadTask(Reader& in) {
  TraceTask task;
  task.name = in.Bytes(in.Count(1));
  task.kind = static_cast<TaskKind>(in.Positive32());
  task.lane = static_cast<Lane>(in.Positive32());
  task.transfer = static_cast<TransferKind>(in.Positive32());
  task.unit = in.Unsigned32();
  task.needed_by = in.Unsigned32();
  task.size_bytes = in.Unsigned();
  task.depends_on = in.Ids();
  task.depends_on_last = in.Ids();
  return task;
}

void WriteSpan(const Span& span, const Span& before, Writer& out) {
  const bool has_wire = span.wire_ns != 0;
  out.Byte(static_cast<uint8_t>(static_cast<uint32_t>(span.kind) | (has_wire ? kHasWire : 0)));
  out.Unsigned(span.task);
  out.Signed(Minus(static_cast<int64_t>(span.step), static_cast<int64_t>(before.step)));
  out.Signed(Minus(span.begin_ns, before.begin_ns));
  out.Signed(Minus(span.ready_ns, span.begin_ns));
  if (has_wire) out.Signed(Minus(span.wire_ns, span.begin_ns));
  out.Signed(Minus(span.end_ns, span.begin_ns));
}

Span ReadSpan(const Span& before, Reader& in) {
  Span span;
  const uint8_t flags = in.Byte();
  span.kind = static_cast<SpanKind>(flags & ~kHasWire);
  span.task = in.Unsigned32();
  span.step = static_cast<uint64_t>(Plus(in.Signed(), static_cast<int64_t>(before.step)));
  span.begin_ns = Plus(in.Signed(), before.begin_ns);
  span.ready_ns = Plus(in.Signed(), span.begin_ns);
  if ((flags & kHasWire) != 0) span.wire_ns = Plus(in.Signed(), span.begin_ns);
  span.end_ns = Plus(in.Signed(), span.begin_ns);
  return span;
}

}  // namespace

std::string SerializeTimeline(const RankTimeline& timeline) {
  Writer out;
  out.Unsigned(static_cast<uint32_t>(timeline.rank));
  out.Unsigned(static_cast<uint32_t>(timeline.world_size));
  out.Signed(timeline.clock_offset_ns);
  out.Unsigned(static_cast<uint64_t>(timeline.clock_error_ns));
  out.Unsigned(timeline.dropped);
  out.Unsigned(timeline.tasks.size());
  for (const TraceTask& task : timeline.tasks) WriteTask(task, out);
  out.Unsigned(timeline.spans.size());
  Span before;
  for (const Span& span : timeline.spans) {
    WriteSpan(span, before, out);
    before = span;
  }
  return out.Take();
}

Result<RankTimeline> ParseTimeline(std::string_view bytes) {
  Reader in(bytes);
  RankTimeline timeline;
  const bool ours = in.Bytes(kMagic.size()) == kMagic;
  timeline.rank = in.Positive32();
  timeline.world_size = in.Positive32();
  timeline.clock_offset_ns = in.Signed();
  timeline.clock_error_ns = static_cast<int64_t>(in.Unsigned());
  timeline.dropped = in.Unsigned();
  timeline.tasks.resize(in.Count(kMinTaskBytes));
  for (TraceTask& task : timeline.tasks) task = ReadTask(in);
  timeline.spans.resize(in.Count(kMinSpanBytes));
  Span before;
  for (Span& span : timeline.spans) before = span = ReadSpan(before, in);
  if (!ours || !in.ok() || !in.at_end()) {
    return Status::Error(StatusCode::kBadData, "%zu bytes are no timeline, or not a whole one",
                         bytes.size());
  }
  ENGINE_RETURN_IF_ERROR(CheckTimeline(timeline));
  return timeline;
}

}  // namespace engine
