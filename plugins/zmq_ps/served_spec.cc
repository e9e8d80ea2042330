// The bounds here keep the arithmetic of updates inside of its arrays: spans fill a cell exactly,
// rows divide it, and data has the size that the cell says. Nothing later checks them again.
#include "served_spec.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

namespace engine::zmq_ps {
namespace {

const char* ObjectionToCut(const CellSpec& spec) {
  const SliceSpec& slice = spec.slice;
  if (spec.row == 0) return nullptr;
  if (slice.total % spec.row != 0 || slice.offset % spec.row != 0 || slice.count % spec.row != 0) {
    return "a slice that is not whole rows";
  }
  return slice.total / spec.row > INT32_MAX ? "too many rows" : nullptr;
}

}  // namespace

// Ranks must agree to the last span: each would train something else otherwise.
bool CellSpec::operator==(const CellSpec& other) const noexcept {
  const auto equal = [](const ServedSpan& x, const ServedSpan& y) {
    return x.count == y.count && x.weight_decay_scale == y.weight_decay_scale;
  };
  return id == other.id && slice == other.slice && row == other.row &&
         std::equal(spans.begin(), spans.end(), other.spans.begin(), other.spans.end(), equal);
}

Status Wrong(const Header& request, const char* what) {
  return Blame(request.worker, "rank %u, slice %u of bucket %016" PRIx64 ": %s", request.worker,
               request.slice, request.key, what);
}

const char* ObjectionToSpans(Array<const ServedSpan> spans, uint64_t count) {
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

Status CheckCell(const Header& request, const CellSpec& spec) {
  if (spec.slice.count == 0) return Wrong(request, "a slice without elements");
  if (const char* const rows = ObjectionToCut(spec)) return Wrong(request, rows);
  const char* const spans = ObjectionToSpans(spec.spans, spec.slice.count);
  return spans ? Wrong(request, spans) : Status();
}

const char* ObjectionToRows(std::span<const int32_t> rows, int64_t first, int64_t end) {
  for (const int32_t row : rows) {
    if (row < first || row >= end) return "rows that are not ascending rows of the slice";
    first = int64_t{row} + 1;
  }
  return nullptr;
}

Status CheckRows(const Header& request, const CellSpec& cell, std::span<const int32_t> rows) {
  if (!request.served.sparse()) return {};
  if (cell.row == 0) return Wrong(request, "rows of a bucket that has no rows");
  const auto first = static_cast<int64_t>(cell.slice.offset / cell.row);
  const auto count = static_cast<int64_t>(cell.slice.count / cell.row);
  const char* const objection = ObjectionToRows(rows, first, first + count);
  return objection ? Wrong(request, objection) : Status();
}

Status CheckPush(const Header& push, const CellSpec& cell, std::span<const int32_t> rows,
                 size_t data_bytes) {
  const ServedFields& served = push.served;
  ENGINE_RETURN_IF_ERROR(CheckRows(push, cell, rows));
  const uint64_t elements = served.sparse() ? rows.size() * cell.row : cell.slice.count;
  if (data_bytes == elements * sizeof(float)) return {};
  return Wrong(push, "a push with more or less data than it says");
}

}  // namespace engine::zmq_ps
