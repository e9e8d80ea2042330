// Attention of one head, on the calling thread: y = softmax(scale q k^T + mask) v.
#pragma once

#include <cstdint>

#include "small_gemm.h"

namespace engine::cpu_ops {

struct AttentionHead {
  RowMatrix q, k, v;  // (queries, size), (keys, size), (keys, value_size)
  int64_t queries, keys;
  int64_t size, value_size;
  float scale;                  // of q k^T
  bool causal;                  // query i looks at keys 0..i only
  const float* mask = nullptr;  // added to scores; or null
  int64_t mask_row = 0;         // its strides, of which that of columns is 0 or 1
  int64_t mask_column = 0;
  // Of q, k, v and dy: a float is two numbers of bfloat16, also in row strides. Sizes are even then, and
  // what is multiplied with them is rounded; products need AVX512-BF16.
  bool pairs = false;
};

// A gradient whose data is null is not wanted.
struct AttentionGradients {
  RowTarget dq, dk, dv;
  bool sum_q, sum_k, sum_v;  // add to them
};

// Floats of scratch that one call needs.
int64_t AttentionScratch(int64_t keys, int64_t size, int64_t value_size) noexcept;

// y (queries, value_size). log_sums (queries, or null) becomes the logarithm of the softmax's
// denominators: all that backward needs besides the inputs (Dao et al., arXiv:2205.14135), where
// saved probabilities would take queries * keys.
void AttentionForward(const AttentionHead& head, RowTarget y, float* log_sums,
                      float* scratch) noexcept;

void AttentionBackward(const AttentionHead& head, RowMatrix dy, const float* log_sums,
                       const AttentionGradients& gradients, float* scratch) noexcept;

// Multiply-adds that are worth a thread.
constexpr int64_t kAttentionGrain = 1 << 18;

}  // namespace engine::cpu_ops
