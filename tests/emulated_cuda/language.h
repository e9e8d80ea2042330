// The part of CUDA C++ that kernels of this repository use, for the host compiler: included before
// a kernel file, which is then C++20. A name that is not here (atomics, for example, whose sums
// have no order) does not compile.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "tests/emulated_cuda/runtime.h"

// The headers of CUDA make the other qualifiers empty.
#undef __launch_bounds__
#define __launch_bounds__(...)
// A block runs on one thread of the system.
#undef __shared__
#define __shared__ static thread_local

#define threadIdx (::emulated_cuda_thread->thread_index)
#define blockIdx (::emulated_cuda_thread->block_index)
#define blockDim (::emulated_cuda_thread->block_size)
#define gridDim (::emulated_cuda_thread->grid_size)

// Barriers.

inline void __syncthreads() {
  emulated_cuda_block_barrier();
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulated_cuda_warp_exchange("__syncwarp", mask, nullptr, 0);
}
inline void __threadfence_system() {}

// Functions of warps.

namespace emulated_cuda {

#ifdef __SANITIZE_THREAD__
constexpr bool kChecked = true;
#else
constexpr bool kChecked = false;
#endif

inline int Lane() {
  const uint3& thread = emulated_cuda_thread->thread_index;
  const dim3& block = emulated_cuda_thread->block_size;
  return static_cast<int>((thread.x + block.x * (thread.y + block.y * thread.z)) % 32);
}

// `source` is a lane of the warp.
template <typename T>
T Shuffle(const char* function, unsigned mask, T value, int source) {
  static_assert(std::is_trivially_copyable_v<T> &&
                (sizeof(T) == 4 || sizeof(T) == 8 || std::is_same_v<T, __nv_bfloat16>));
  const unsigned char* values = emulated_cuda_warp_exchange(function, mask, &value, sizeof(T));
  T result;
  std::memcpy(&result, values + source * kEmulatedCudaSlot, sizeof(T));
  return result;
}

}  // namespace emulated_cuda

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  return emulated_cuda::Shuffle("__shfl_xor_sync", mask, value, emulated_cuda::Lane() ^ lane_mask);
}

// The fast functions of a device are less exact than these.
inline float __fdividef(float x, float y) {
  return x / y;
}

namespace emulated_cuda {

inline void CheckRow(const void* row) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    emulated_cuda_fail("a row of a matrix that is loaded from shared memory is not aligned to 16");
  }
}

}  // namespace emulated_cuda

// What kernels/launch.h and kernels/mma.h declare for a device.

namespace engine::cuda_ops {

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments... arguments) noexcept {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...));
  static_assert((sizeof(Parameters) + ... + 0) <= 4096, "the parameters of a kernel: 4 KiB");
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  };
  static thread_local unsigned char any_shared = 0;
  const EmulatedCudaKernel launch = {
      .grid = grid,
      .block = block,
      .shared_bytes = shared_bytes,
      .function = reinterpret_cast<const void*>(kernel),
      .run =
          [](const void* call) {
            std::apply(static_cast<const Call*>(call)->kernel,
                       static_cast<const Call*>(call)->arguments);
          },
      .destroy = [](void* call) { delete static_cast<Call*>(call); },
      .arguments = new Call{kernel, {static_cast<Parameters>(arguments)...}},
      .find_shared = []() -> void* { return &any_shared; },
      .checked = emulated_cuda::kChecked};
  return emulated_cuda_launch(stream, &launch);
}

inline unsigned char* DynamicShared() {
  return emulated_cuda_thread->dynamic_shared;
}

inline void LoadMatrices(uint32_t (&out)[4], const void* row) {
  emulated_cuda::CheckRow(row);
  const unsigned char* rows = emulated_cuda_warp_exchange("LoadMatrices", 0xffffffffu, row, 16);
  const int lane = emulated_cuda::Lane();
  for (int i = 0; i < 4; ++i) {
    std::memcpy(&out[i], rows + (8 * i + lane / 4) * kEmulatedCudaSlot + lane % 4 * 4, 4);
  }
}

inline void LoadMatricesTransposed(uint32_t (&out)[4], const void* row) {
  emulated_cuda::CheckRow(row);
  const unsigned char* rows =
      emulated_cuda_warp_exchange("LoadMatricesTransposed", 0xffffffffu, row, 16);
  const int lane = emulated_cuda::Lane();
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int j = 0; j < 2; ++j) {
      std::memcpy(&pair[j], rows + (8 * i + 2 * (lane % 4) + j) * kEmulatedCudaSlot + lane / 4 * 2,
                  2);
    }
    std::memcpy(&out[i], pair, 4);
  }
}

inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_cuda_warp_multiply_add(d, a, b0, b1);
}

inline void CopyAsync16(void* shared, const void* global, bool valid) {
  emulated_cuda_copy_async(shared, global, 16, valid);
}
inline void CommitCopies() {
  emulated_cuda_commit_copies();
}
template <int kPending>
inline void WaitForCopies() {
  emulated_cuda_wait_for_copies(kPending);
}

}  // namespace engine::cuda_ops
