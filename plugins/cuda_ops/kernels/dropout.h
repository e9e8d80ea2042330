// The random masks of dropout, a function of (seed, step, node) and of the position in the batch of
// all ranks: the same in every op library. A stream of 64-bit numbers (SplitMix64; Steele, Lea,
// Flood: Fast splittable pseudorandom number generators, 2014) belongs to each (seed, step, node):
//
//   word(i)      = Finalize(start + i * increment)
//   bits(p)      = the low (even p) or high (odd p) half of word(p / 2)
//   kept(p)      = bits(p) >= threshold
//   start        = Key(0),  increment = Key(1) | 1
//   Key(k)       = Mix(Mix(Mix(Mix(seed) ^ step) ^ node) ^ k)
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

__host__ __device__ inline uint64_t Finalize(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

__host__ __device__ inline uint64_t Mix(uint64_t bits) {
  return Finalize(bits + 0x9e3779b97f4a7c15u);
}

struct alignas(16) RandomStream {
  uint64_t start, increment;

  __host__ __device__ static RandomStream Of(uint64_t seed, uint64_t step, uint64_t node) {
    const uint64_t key = Mix(Mix(Mix(seed) ^ step) ^ node);
    return {Mix(key), Mix(key ^ 1u) | 1u};
  }
  __host__ __device__ uint64_t Word(uint64_t i) const { return Finalize(start + i * increment); }
  __host__ __device__ static uint32_t Half(uint64_t word, uint64_t position) {
    return static_cast<uint32_t>(position % 2 == 0 ? word : word >> 32);
  }
};

struct DropoutMask {
  uint64_t seed, step, node, first_sample;
  // Device memory, or null: instead of the values above.
  const uint64_t* step_word;
  const uint64_t* first_sample_word;
  uint64_t sample_size;  // elements; 0: positions are those in the call
  uint32_t threshold;    // bits below it drop an element
  float scale;           // of the others
};

// target[i] becomes, or has added when `sum`, source[i] * scale or 0. They may be the same memory.
// T is float or __nv_bfloat16.
template <typename T>
cudaError_t LaunchDropout(const DropoutMask& mask, const T* source, T* target, bool sum,
                          int64_t count, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
