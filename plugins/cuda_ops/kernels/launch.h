// How kernels are started: one function, so that tests can run the same kernels on the host.
//
// A kernel file is CUDA C++17 and is compiled by nvcc; tests/emulated_cuda compiles it a second
// time with the host compiler, where each block runs as as many fibers as it has threads. So
// kernels use of CUDA only what tests/emulated_cuda/language.h has: built-in indices, shared memory
// (static, or DynamicShared()), __syncthreads, __syncwarp, shuffles of full warps, and the
// functions of mma.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace engine::cuda_ops {

#ifndef ENGINE_EMULATED_CUDA

// `arguments` are converted to the parameters of the kernel. The error is that of the launch; those
// of the kernel show later.
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments... arguments) noexcept {
  // Above 48 KiB a kernel must have been allowed what it asks for.
  if (shared_bytes > (48 << 10)) {
    const cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  const auto start = [&](Parameters... parameters) {
    void* pointers[] = {static_cast<void*>(&parameters)...};
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers,
                            shared_bytes, stream);
  };
  return start(static_cast<Parameters>(arguments)...);
}

#ifdef __CUDACC__
// The shared memory that Launch was asked for, aligned to 128 bytes.
__device__ inline unsigned char* DynamicShared() {
  extern __shared__ __align__(128) unsigned char engine_dynamic_shared[];
  return engine_dynamic_shared;
}
#endif

#endif  // ENGINE_EMULATED_CUDA

constexpr int kWarp = 32;

inline unsigned BlocksFor(int64_t count, int64_t per_block) noexcept {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

// Of threads that go on with what is a grid further: more would have nothing to do at a time.
inline unsigned StridingBlocksFor(int64_t count, int64_t per_block) noexcept {
  int device = 0, multiprocessors = 1;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const unsigned wanted = BlocksFor(count, per_block),
                 most = 64u * static_cast<unsigned>(multiprocessors);
  return wanted < most ? wanted : most;
}

}  // namespace engine::cuda_ops
