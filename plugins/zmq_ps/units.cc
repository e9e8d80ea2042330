#include "units.h"

#include <algorithm>
#include <bit>
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

// One step of FNV-1a (Fowler, Noll, Vo), with a word in place of a byte, and a shift that mixes.
void Mix(uint64_t word, uint64_t* digest) noexcept {
  *digest = (*digest ^ word) * 0x100000001b3;
  *digest ^= *digest >> 29;
}

uint64_t DigestOf(const Unit& unit) noexcept {
  uint64_t digest = 0xcbf29ce484222325;
  Mix(unit.key, &digest);
  Mix(static_cast<uint64_t>(unit.count), &digest);
  Mix(static_cast<uint64_t>(unit.row), &digest);
  for (const ServedSpan& span : unit.spans) {
    Mix(static_cast<uint64_t>(span.count), &digest);
    Mix(std::bit_cast<uint32_t>(span.weight_decay_scale), &digest);
  }
  return digest;
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
    table.digest_ += DigestOf(unit);  // a sum, so that their order does not matter
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
