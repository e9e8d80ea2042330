// How kernels report data that is wrong, without the host waiting for them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

// What the device found wrong with data: written by kernels, read by the host without waiting.
// Mapped host memory. `code` is written last.
struct DeviceFault {
  enum : int32_t { kNone = 0, kToken = 1, kTarget = 2, kWeight = 3 };
  volatile int32_t code = kNone;
  volatile int32_t value = 0;     // what was found
  volatile float weight = 0;      // the same, of a weight
  volatile int64_t position = 0;  // in its tensor
  volatile int32_t limit = 0;     // it must be in [0, limit)
};

#if defined(__CUDACC__) || defined(ENGINE_EMULATED_CUDA)
// One of the first faults that are found stays.
__device__ inline void ReportFault(DeviceFault* fault, int32_t code, int32_t value,
                                   int64_t position, int32_t limit, float weight = 0) {
  if (fault->code != DeviceFault::kNone) return;
  fault->value = value;
  fault->weight = weight;
  fault->position = position;
  fault->limit = limit;
  __threadfence_system();
  fault->code = code;
}
#endif

}  // namespace engine::cuda_ops
