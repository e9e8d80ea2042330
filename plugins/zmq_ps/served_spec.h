// What ranks say of a cell, a slice of a bucket at its server, and the checks of it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "engine/status.h"
#include "wire.h"

namespace engine::zmq_ps {

struct CellId {
  uint64_t bucket = 0;  // ServedBucket::key
  uint32_t slice = 0;
  auto operator<=>(const CellId&) const = default;
};

inline CellId CellOf(const Header& request) noexcept {
  return {.bucket = request.key, .slice = request.slice};
}

// What all ranks say alike of a cell when they register it.
struct CellSpec {
  CellId id;
  SliceSpec slice;
  uint64_t row = 0;               // elements of a row, 0: no rows; divides offset, count and total
  std::vector<ServedSpan> spans;  // clipped to the cell: together `count` elements

  bool operator==(const CellSpec& other) const noexcept;
};

// Decode has judged the numbers of SliceSpec. What a rank says of its own call it has checked
// itself (parameter_client.cc, buckets.cc); the arithmetic of updates relies on what follows, which
// blames the rank of `request`.

// Why `spans` are not `count` elements, or null.
const char* ObjectionToSpans(Array<const ServedSpan> spans, uint64_t count);
// Why `rows` are not ascending numbers in [first, end), or null: so a list is at most as long as
// there are rows, and a row is added once.
const char* ObjectionToRows(std::span<const int32_t> rows, int64_t first, int64_t end);
// Elements, whole rows of them, and spans that fill it.
Status CheckCell(const Header& request, const CellSpec& spec);
// That `rows` are ascending rows of the cell, and none without ServedFields::sparse.
Status CheckRows(const Header& request, const CellSpec& cell, std::span<const int32_t> rows);
// Its rows, and that its data has the size it must have.
Status CheckPush(const Header& push, const CellSpec& cell, std::span<const int32_t> rows,
                 size_t data_bytes);
// kInvalidArgument: "rank 1, slice 2 of bucket 000000000000002a: <what>"
Status Wrong(const Header& request, const char* what);

}  // namespace engine::zmq_ps
