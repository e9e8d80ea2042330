// Element-wise reductions of what workers push. Buffers come out of network messages, so they are
// aligned to nothing.
#pragma once

#include <cstddef>

#include "engine/communicator.h"

namespace engine::zmq_ps {

// Sums of 16-bit floats are kept in float32 and rounded once, to nearest even; integers wrap
// around; max and min are NaN when an operand is.
struct ReduceKernels {
  size_t accumulator_bytes;  // per element
  // Whether elements are their own accumulators: then `load` and `store` copy.
  bool in_place;
  void (*load)(void* accumulator, const void* x, size_t count) noexcept;
  void (*fold)(void* accumulator, const void* x, size_t count) noexcept;  // accumulator op= x
  void (*store)(void* out, const void* accumulator, size_t count) noexcept;
};

const ReduceKernels& KernelsFor(DType dtype, Reduction reduction) noexcept;

}  // namespace engine::zmq_ps
