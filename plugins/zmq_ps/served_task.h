// The update of a cell: gradients that are added up, and the optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>
#include <zmq.hpp>

#include "engine/optimizer.h"
#include "engine/status.h"
#include "served_spec.h"

namespace engine::zmq_ps {

class ServedCell;

constexpr size_t kMaxServedArrays = 1 + kMaxOptimizerStates;  // values, then states

// What one worker pushed, in the memory in which it arrived (aligned to nothing).
struct ServedGradient {
  ::zmq::message_t data;
  bool sparse = false;
  std::vector<int32_t> rows;  // sparse: whose rows `data` holds, counted from the cell's first one
};

// Of one cell; no two of a cell are under way at once. Belongs to the cell: whoever runs it has it
// from Table::NextWork until Table::Finished, and alone.
struct UpdateTask {
  ServedCell* cell = nullptr;
  const CellSpec* spec = nullptr;
  Optimizer* optimizer = nullptr;
  size_t arrays = 0;
  std::vector<ServedGradient> inputs;  // in the order of addition
  // Each array is read from `from` and written to `to`; the same memory, or another version of it.
  const float* from[kMaxServedArrays] = {};
  float* to[kMaxServedArrays] = {};
  uint64_t step = 0;
  float learning_rate = 0;
  float gradient_scale = 1;
  Status status;  // the result

  // Of memory that passes through, to share work evenly.
  size_t bytes() const noexcept;
};

// Block by block, so that a gradient that was added up is still in the cache when the optimizer
// reads it: one pass over the inputs and the arrays. The result does not depend on the blocks.
// [any-thread]
void Run(UpdateTask& task) noexcept;

}  // namespace engine::zmq_ps
