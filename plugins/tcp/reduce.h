// Element-wise reductions. All ranks reduce in rank order, so they get the same bits in every run.
#pragma once

#include <cstddef>

#include "engine/communicator.h"

namespace engine::tcp {

// Sums of 16-bit floats are accumulated in float32 and rounded once; integers wrap around; max and
// min give NaN when an operand is NaN. Elements are aligned to their size.
struct ReduceKernels {
  // out = a op b; `out` may be `a` or `b`. What two ranks need.
  void (*combine)(void* out, const void* a, const void* b, size_t count) noexcept;
  // accumulator = x; accumulator = accumulator op x; out = accumulator. An accumulator has at
  // most kAccumulatorGrowth times the bytes of the elements.
  void (*load)(void* accumulator, const void* x, size_t count) noexcept;
  void (*fold)(void* accumulator, const void* x, size_t count) noexcept;
  void (*store)(void* out, const void* accumulator, size_t count) noexcept;
};

constexpr size_t kAccumulatorGrowth = 2;

const ReduceKernels& KernelsFor(DType dtype, Reduction reduction) noexcept;

}  // namespace engine::tcp
