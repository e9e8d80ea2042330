// Matrix instructions of a warp (sm_80 and later) and asynchronous copies to shared memory. The
// layouts of fragments are those of the PTX manual, "Matrix fragments for mma.m16n8k16".
#pragma once

#include <cstdint>

#include "kernels/launch.h"

namespace engine::cuda_ops {

#ifndef ENGINE_EMULATED_CUDA
#ifdef __CUDACC__

// Four 8x8 matrices of 16-bit elements: the row of 16 bytes at `row` of lane 8 i + r is row r of
// matrix i; lane l gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i in out[i].
__device__ inline void LoadMatrices(uint32_t (&out)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// The same of transposed matrices: lane l gets elements l / 4 of rows 2 (l % 4) and 2 (l % 4) + 1.
__device__ inline void LoadMatricesTransposed(uint32_t (&out)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// d (16 x 8, float) += a (16 x 16, bfloat16, by rows) * b (16 x 8, bfloat16, by columns).
__device__ inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory, both aligned to 16; zeros instead unless `valid`.
__device__ inline void CopyAsync16(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int size = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(size)
               : "memory");
}
__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until at most kPending of this thread's committed groups are under way; other threads' copies
// show after a __syncthreads as well.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif  // __CUDACC__
#endif  // ENGINE_EMULATED_CUDA

}  // namespace engine::cuda_ops
