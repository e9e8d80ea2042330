#include "kernels.h"

namespace engine::shm {

// All tables give the same bits: ranks need not choose alike.
const kit::KernelTable& KernelsOfThisProcessor() noexcept {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return kKernelsAvx512;
  }
  if (__builtin_cpu_supports("avx2")) return kKernelsAvx2;
#endif
  return kit::kReduceKernels;
}

}  // namespace engine::shm
