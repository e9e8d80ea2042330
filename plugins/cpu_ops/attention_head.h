// Scaled dot-product attention of one head of one sample, forward and backward.
#pragma once

#include <cstdint>

#include "small_gemm.h"

namespace engine::cpu_ops {

// q, k and v are (length, size) each.
struct AttentionHead {
  RowMatrix q, k, v;
  int64_t length;
  int64_t size;
  float scale;  // of q k^T before the softmax
  bool causal;  // position i looks at 0..i only
};

// Floats of scratch that one call needs.
int64_t AttentionScratch(int64_t length, int64_t size) noexcept;

// y (length, size) = softmax(scale q k^T) v. log_sums (length, or null) becomes the logarithm of
// the softmax's denominators: all that backward needs besides the inputs (Dao et al.,
// arXiv:2205.14135), where saved probabilities would take length^2.
void AttentionForward(const AttentionHead& head, RowTarget y, float* log_sums,
                      float* scratch) noexcept;

struct AttentionGradients {
  RowTarget dq, dk, dv;
  bool sum;  // add to them
};

void AttentionBackward(const AttentionHead& head, RowMatrix dy, const float* log_sums,
                       const AttentionGradients& gradients, float* scratch) noexcept;

}  // namespace engine::cpu_ops
