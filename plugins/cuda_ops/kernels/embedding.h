// Rows of tables by token and position, and their gradient without atomics: token positions are
// sorted by token (CUB's radix sort, which is stable), cut into chunks of equal length, and each
// run of one token is added up in ascending position, first within each chunk.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/fault.h"

namespace engine::cuda_ops {

// y[i] = table[tokens[i]] (+ positions[i % length], unless that is null) for i in [0, count), each
// of `width` elements. A token outside of [0, vocabulary) is reported and read as 0. T is float or
// __nv_bfloat16.
template <typename T>
struct EmbeddingForward {
  const int32_t* tokens;
  const T* table;
  const T* positions;
  T* y;
  int64_t count, length, width, vocabulary;
  DeviceFault* fault;
};

template <typename T>
cudaError_t LaunchEmbedding(const EmbeddingForward<T>& call, cudaStream_t stream) noexcept;

// What the gradient of `count` tokens needs as scratch, of which fewer tokens need no more.
struct EmbeddingScratch {
  int32_t* tokens[2];
  int32_t* places[2];  // where they are
  float* borders;      // (chunks, 2, width): sums of runs that cross the ends of their chunk
  void* sort;
  size_t sort_bytes = 0;
  int64_t size_bytes = 0;
  cudaError_t error;  // of asking CUB for sort_bytes, which depends on the current device

  // Laid out in `memory`, which may be null when only the size is asked for.
  EmbeddingScratch(void* memory, int64_t count, int64_t width, int64_t vocabulary) noexcept;
};

// gradient[tokens[i]] += dy[i] for all i. `gradient` (vocabulary, width) is float32.
template <typename T>
cudaError_t LaunchEmbeddingGradient(const int32_t* tokens, const T* dy, int64_t count,
                                    int64_t width, int64_t vocabulary,
                                    const EmbeddingScratch& scratch, float* gradient,
                                    cudaStream_t stream) noexcept;

// gradient[i % length] += dy[i] for all i.
template <typename T>
cudaError_t LaunchPositionGradient(const T* dy, int64_t count, int64_t length, int64_t width,
                                   float* gradient, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
