// The bounds here keep the arithmetic of updates inside of its arrays: spans fill a cell exactly, rows
// divide it, and data has the size that the cell says. Nothing later checks them again.
#include "served_spec.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "describe.h"
#include "wire.h"

namespace engine::zmq_ps {
namespace {

constexpr size_t kMaxSpans = size_t{1} << 20;

Status Wrong(uint32_t worker, const CellId& id, const char* what) {
  return Blame(worker, "rank %u, slice %u of unit %016" PRIx64 ": %s", worker, id.slice, id.unit,
               what);
}

const char* ObjectionTo(const CellSpec& spec, uint64_t max_bytes) {
  if (spec.id.unit == 0) return "a unit without a key";
  if (spec.slices == 0 || spec.slices > kMaxSlices || spec.id.slice >= spec.slices) {
    return "a number of slices out of range";
  }
  if (spec.total > kMaxElements || spec.offset > spec.total ||
      spec.count > spec.total - spec.offset) {
    return "a slice outside of the unit";
  }
  if (spec.count > max_bytes / sizeof(float)) return "a slice that is too large";
  if (spec.row != 0) {
    if (spec.total % spec.row != 0 || spec.offset % spec.row != 0 || spec.count % spec.row != 0) {
      return "a slice that is not whole rows";
    }
    if (spec.total / spec.row > INT32_MAX) return "too many rows";
  }
  return ObjectionToSpans(spec.spans, spec.count);
}

Text Describe(const CellSpec& spec) {
  return kit::Format("elements %" PRIu64 " to %" PRIu64 " of %" PRIu64
                     " in %u slices, rows of %" PRIu64 ", %zu parameters",
                     spec.offset, spec.offset + spec.count, spec.total, spec.slices, spec.row,
                     spec.spans.size());
}

// Ranks must agree to the last span: each would train something else otherwise.
bool Equal(const CellSpec& a, const CellSpec& b) {
  const auto equal = [](const ServedSpan& x, const ServedSpan& y) {
    return x.count == y.count && x.weight_decay_scale == y.weight_decay_scale;
  };
  return a.id == b.id && a.slices == b.slices && a.offset == b.offset && a.count == b.count &&
         a.total == b.total && a.row == b.row &&
         std::equal(a.spans.begin(), a.spans.end(), b.spans.begin(), b.spans.end(), equal);
}

}  // namespace

const char* ObjectionToSpans(std::span<const ServedSpan> spans, uint64_t count) {
  if (spans.size() > kMaxSpans) return "too many spans";
  for (const ServedSpan& span : spans) {
    if (span.count <= 0 || static_cast<uint64_t>(span.count) > count)
      return "spans that do not fit";
    if (!std::isfinite(span.weight_decay_scale) || span.weight_decay_scale < 0) {
      return "a scale of weight decay that is no number from 0 on";
    }
    count -= static_cast<uint64_t>(span.count);
  }
  return count != 0 ? "spans that do not fill it" : nullptr;
}

Status CheckCell(uint32_t worker, const CellSpec& spec, uint64_t max_bytes) {
  const char* const objection = ObjectionTo(spec, max_bytes);
  return objection ? Wrong(worker, spec.id, objection) : Status();
}

Status CheckSameCell(uint32_t worker, const CellSpec& spec, uint32_t first_worker,
                     const CellSpec& first) {
  if (Equal(spec, first)) return {};
  return Blame(worker,
               "rank %u describes slice %u of unit %016" PRIx64
               " as %s, but rank %u as %s, or with other sizes or weight decay: all ranks must "
               "train the same model with the same scheduler and slice_bytes",
               worker, spec.id.slice, spec.id.unit, Describe(spec).c_str(), first_worker,
               Describe(first).c_str());
}

// Ascending, so that a list is at most as long as there are rows, and a row is added once.
Status CheckRows(uint32_t worker, const CellSpec& cell, std::span<const int32_t> rows) {
  if (cell.row == 0) return Wrong(worker, cell.id, "rows of a unit that has no rows");
  const auto first = static_cast<int64_t>(cell.offset / cell.row);
  const auto end = static_cast<int64_t>((cell.offset + cell.count) / cell.row);
  int64_t least = first;
  for (const int32_t row : rows) {
    if (row < least || row >= end) {
      return Wrong(worker, cell.id, "rows that are not ascending rows of the slice");
    }
    least = int64_t{row} + 1;
  }
  return {};
}

Status CheckPush(uint32_t worker, const CellSpec& cell, const PushSpec& push, size_t data_bytes) {
  if (push.step == 0 || push.step > kMaxStep) {
    return Wrong(worker, cell.id, "a push with a step out of range");
  }
  if (!std::isfinite(push.learning_rate)) {
    return Wrong(worker, cell.id, "a push whose learning rate is no number");
  }
  if (!std::isfinite(push.weight) || push.weight < 0) {
    return Wrong(worker, cell.id, "a push whose weight is no number from 0 on");
  }
  uint64_t elements = cell.count;
  if (push.sparse) {
    ENGINE_RETURN_IF_ERROR(CheckRows(worker, cell, push.rows));
    elements = push.rows.size() * cell.row;  // at most `count`: they are ascending
  }
  if (data_bytes == elements * sizeof(float)) return {};
  return Wrong(worker, cell.id, "a push with more or less data than it says");
}

}  // namespace engine::zmq_ps
