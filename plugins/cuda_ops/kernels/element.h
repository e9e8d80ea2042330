// Elements of tensors in kernels: float, bfloat16 or half in memory, float in registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>

#include "kernels/launch.h"

namespace engine::cuda_ops {

using Bf16 = __nv_bfloat16;

__host__ __device__ inline float ToFloat(float x) {
  return x;
}
__host__ __device__ inline float ToFloat(Bf16 x) {
  return __bfloat162float(x);
}
__host__ __device__ inline float ToFloat(__half x) {
  return __half2float(x);
}

template <typename T>
__host__ __device__ inline T FromFloat(float x);
template <>
__host__ __device__ inline float FromFloat<float>(float x) {
  return x;
}
template <>
__host__ __device__ inline Bf16 FromFloat<Bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__host__ __device__ inline __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// kCount elements that are loaded and stored together: 16 bytes where that divides the address.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

// How many elements one load of 16 bytes has.
template <typename T>
constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

template <typename T>
__host__ __device__ inline bool IsAligned16(const T* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & 15) == 0;
}

// Whether rows of `width` elements can be taken in packs of 16 bytes.
template <typename T>
bool IsPacked(int64_t width, std::initializer_list<const T*> tensors) {
  bool packed = width % kPackSize<T> == 0;
  for (const T* tensor : tensors) packed = packed && IsAligned16(tensor);
  return packed;
}

}  // namespace engine::cuda_ops
