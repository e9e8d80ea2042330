// Passes over elements that take several at a time where they can: a thread for each such pack.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/element.h"

namespace engine::cuda_ops {

constexpr int kThreads = 256;

__device__ inline int64_t ThreadIndex() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

// Starts a kernel of `count` threads, which is its last parameter.
template <typename Kernel, typename... Arguments>
cudaError_t ForEach(int64_t count, Kernel* kernel, cudaStream_t stream,
                    const Arguments&... arguments) noexcept {
  if (count == 0) return cudaSuccess;
  return Launch(kernel, dim3(BlocksFor(count, kThreads)), dim3(kThreads), 0, stream, arguments...,
                count);
}

// Calls function(integral_constant<int, n>) with the number of elements that a thread may take
// together: as many as 16 bytes have where that divides `width` and all `tensors` are aligned, else
// 1.
template <typename T, typename Function>
cudaError_t WithPackSize(int64_t width, std::initializer_list<const T*> tensors,
                         const Function& function) noexcept {
  return IsPacked<T>(width, tensors) ? function(std::integral_constant<int, kPackSize<T>>{})
                                     : function(std::integral_constant<int, 1>{});
}

template <int kCount, typename T>
__device__ inline Pack<T, kCount> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}

template <int kCount, typename T>
__device__ inline void StorePack(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

template <int kCount, typename T>
__device__ inline void LoadFloats(const T* from, float (&values)[kCount]) {
  const auto pack = LoadPack<kCount>(from);
  for (int j = 0; j < kCount; ++j) values[j] = ToFloat(pack.at[j]);
}

// Elements become `values`, or have them added.
template <int kCount, typename T>
__device__ inline void PutPack(T* to, const float (&values)[kCount], bool sum) {
  Pack<T, kCount> pack;
  if (sum) pack = LoadPack<kCount>(to);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    pack.at[j] = FromFloat<T>(sum ? ToFloat(pack.at[j]) + values[j] : values[j]);
  }
  StorePack(to, pack);
}

}  // namespace engine::cuda_ops
