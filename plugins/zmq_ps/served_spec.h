// What workers say of the cells of a server: descriptions, pushes and pulls, and their checks.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/ext/parameter_server.h"
#include "engine/status.h"

namespace engine::zmq_ps {

struct CellId {
  uint64_t unit = 0;  // ServedUnit::key
  uint32_t slice = 0;
  auto operator<=>(const CellId&) const = default;
};

// What all workers say alike of a cell.
struct CellSpec {
  CellId id;
  uint32_t slices = 1;            // of the unit
  uint64_t offset = 0;            // elements, of the cell in the unit
  uint64_t count = 0;             // elements of the cell
  uint64_t total = 0;             // elements of the unit
  uint64_t row = 0;               // elements of a row, 0: no rows; divides the three above
  std::vector<ServedSpan> spans;  // clipped to the cell: together `count` elements
};

struct PushSpec {
  uint64_t step = 0;  // from 1 on
  float learning_rate = 0;
  float weight = 0;
  bool sparse = false;  // the data holds these rows only, one after the other; others
  std::span<const int32_t> rows = {};  // are zero. Ascending numbers of rows of the unit; copied
};

struct PullSpec {
  uint64_t request = 0;                // given back with the answer
  uint64_t step = 0;                   // of the push that the answer must contain (see ServedCell)
  int32_t state = -1;                  // < 0: values; else a state of the optimizer
  bool sparse = false;                 // only these rows, one after the other
  std::span<const int32_t> rows = {};  // as in PushSpec
};

// The checks below blame `worker`. Their bounds hold before memory is taken.

// Why `spans` are not `count` elements, or null.
const char* ObjectionToSpans(std::span<const ServedSpan> spans, uint64_t count);
// A description on its own.
Status CheckCell(uint32_t worker, const CellSpec& spec, uint64_t max_bytes);
// That it is the one that `first_worker` gave first.
Status CheckSameCell(uint32_t worker, const CellSpec& spec, uint32_t first_worker,
                     const CellSpec& first);
// That `rows` are ascending rows of the cell.
Status CheckRows(uint32_t worker, const CellSpec& cell, std::span<const int32_t> rows);
// Numbers of a push, and that its data has the size it must have.
Status CheckPush(uint32_t worker, const CellSpec& cell, const PushSpec& push, size_t data_bytes);

}  // namespace engine::zmq_ps
