// What kernels use of CUB, on the host: found before the header of the toolkit.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/emulated_cuda/runtime.h"

namespace cub {

template <typename T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector = 0;

  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() { return d_buffers[selector]; }
  T* Alternate() { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
  // All bits of a key take part: `end_bit` is checked, not needed.
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* scratch, size_t& scratch_bytes, DoubleBuffer<Key>& keys,
                               DoubleBuffer<Value>& values, int count, int, int end_bit,
                               cudaStream_t stream) {
    const size_t needed = static_cast<size_t>(count) / 8 + 1000;
    if (scratch == nullptr) {
      scratch_bytes = needed;
      return cudaSuccess;
    }
    if (scratch_bytes < needed) return cudaErrorInvalidValue;
    const auto sort = [=]() mutable {
      std::memset(scratch, 0xff, needed);
      std::vector<std::pair<Key, Value>> pairs;
      for (int i = 0; i < count; ++i) {
        pairs.emplace_back(keys.Current()[i], values.Current()[i]);
        if (pairs.back().first >> end_bit != 0) emulated_cuda_fail("a key has too many bits");
      }
      std::stable_sort(pairs.begin(), pairs.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      std::fill_n(keys.Current(), count, Key(-1));
      for (int i = 0; i < count; ++i) {
        keys.Alternate()[i] = pairs[static_cast<size_t>(i)].first;
        values.Alternate()[i] = pairs[static_cast<size_t>(i)].second;
      }
      return cudaSuccess;
    };
    const cudaError_t error = emulated_cuda::Enqueue(stream, sort);
    keys.selector ^= 1;
    values.selector ^= 1;
    return error;
  }
};

}  // namespace cub
