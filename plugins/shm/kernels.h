// Copies and element-wise reductions. All ranks reduce in rank order, so they get the same bits in
// every run.
#pragma once

#include <cstddef>

#include "engine/communicator.h"

namespace engine::shm {

// Sums of 16-bit floats are accumulated in float32 and rounded once; integers wrap around; max and
// min give NaN when an operand is NaN. Elements are aligned to their size.
struct ReduceKernels {
  // out = a op b; `out` may be `a` or `b`. What two ranks need.
  void (*combine)(void* out, const void* a, const void* b, size_t count) noexcept;
  // As above into two places at once; each may be `a` or `b`.
  void (*combine_twice)(void* out, void* out2, const void* a, const void* b, size_t count) noexcept;
  // accumulator = x; accumulator = accumulator op x; out = accumulator. An accumulator has at
  // most kAccumulatorGrowth times the bytes of the elements.
  void (*load)(void* accumulator, const void* x, size_t count) noexcept;
  void (*fold)(void* accumulator, const void* x, size_t count) noexcept;
  void (*store)(void* out, const void* accumulator, size_t count) noexcept;
};

constexpr size_t kAccumulatorGrowth = 2;

// By [dtype][reduction].
struct KernelTable {
  ReduceKernels kernels[5][3];
};

// The same loops for rising instruction sets, with the same results.
extern const KernelTable kKernelsBaseline;
#if defined(__x86_64__)
extern const KernelTable kKernelsAvx2;
extern const KernelTable kKernelsAvx512;
#endif

// The best for this processor.
const KernelTable& KernelsOfThisProcessor() noexcept;

inline const ReduceKernels& KernelsFor(const KernelTable& table, DType dtype,
                                       Reduction reduction) noexcept {
  return table.kernels[static_cast<int>(dtype)][static_cast<int>(reduction)];
}

}  // namespace engine::shm
