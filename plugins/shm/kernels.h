// The reductions of the kit, compiled for rising instruction sets, with the same results.
#pragma once

#include "kit/reduce.h"

namespace engine::shm {

#if defined(__x86_64__)
extern const kit::KernelTable kKernelsAvx2;
extern const kit::KernelTable kKernelsAvx512;
#endif

// The best for this processor.
const kit::KernelTable& KernelsOfThisProcessor() noexcept;

}  // namespace engine::shm
