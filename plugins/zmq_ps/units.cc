#include "units.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cinttypes>
#include <utility>

#include "served_spec.h"

namespace engine::zmq_ps {
namespace {

Status Check(const ServedUnit& unit, uint64_t slice_bytes) {
  const auto invalid = [&](const char* what) {
    return Status::Error(StatusCode::kInvalidArgument,
                         "unit %016" PRIx64 " of %" PRId64 " elements cannot be served: %s",
                         unit.key, unit.count, what);
  };
  if (unit.key == 0) return invalid("it has no key");
  if (unit.count <= 0 || unit.count > static_cast<int64_t>(kMaxElements)) {
    return invalid("its size is out of range");
  }
  const char* const objection = ObjectionToSpans(unit.spans, static_cast<uint64_t>(unit.count));
  if (objection) return invalid(objection);
  if (unit.row < 0 || (unit.row > 0 && unit.count % unit.row != 0)) {
    return invalid("it is no whole number of rows");
  }
  if (static_cast<uint64_t>(unit.row) * sizeof(float) > slice_bytes) {
    return invalid("one row is more than slice_bytes of zmq_ps");
  }
  if (unit.spans.size() * sizeof(ServedSpan) > slice_bytes) {
    return invalid("its list of parameters is longer than slice_bytes of zmq_ps");
  }
  return {};
}

// Of host bytes: all ranks run the same build, and a span has no padding.
uint64_t DigestOf(const ServedUnit& unit) noexcept {
  const uint64_t sizes[] = {unit.key, static_cast<uint64_t>(unit.count),
                            static_cast<uint64_t>(unit.row)};
  return XXH3_64bits_withSeed(unit.spans.data(), unit.spans.size_bytes(),
                              XXH3_64bits(sizes, sizeof(sizes)));
}

}  // namespace

// A unit with rows longer than a slice could not be cut between rows, and its spans travel in one
// message per slice: both are refused here, where a person can still choose other options.
Result<UnitTable> UnitTable::Create(std::span<const ServedUnit> units, uint64_t slice_bytes) {
  UnitTable table;
  for (const ServedUnit& served : units) {
    ENGINE_RETURN_IF_ERROR(Check(served, slice_bytes));
    Unit unit{.key = served.key,
              .count = served.count,
              .row = served.row,
              .spans = {served.spans.begin(), served.spans.end()}};
    table.digest_ += DigestOf(served);  // a sum, so that their order does not matter
    if (!table.units_.emplace(served.key, std::move(unit)).second) {
      return Status::Error(StatusCode::kInvalidArgument,
                           "two units have the key %016" PRIx64 ": each needs its own", served.key);
    }
  }
  return table;
}

const Unit* UnitTable::Find(uint64_t key) const noexcept {
  const auto found = units_.find(key);
  return found == units_.end() ? nullptr : &found->second;
}

std::vector<ServedSpan> SpansOf(const Unit& unit, uint64_t offset, uint64_t count) {
  std::vector<ServedSpan> spans;
  uint64_t begin = 0;
  for (const ServedSpan& span : unit.spans) {
    const uint64_t end = begin + static_cast<uint64_t>(span.count);
    const uint64_t first = std::max(begin, offset), last = std::min(end, offset + count);
    if (first < last) {
      spans.push_back({static_cast<int64_t>(last - first), span.weight_decay_scale, 0});
    }
    begin = end;
  }
  return spans;
}

}  // namespace engine::zmq_ps
