// Attention in double precision, by its formulas.
#pragma once

#include <vector>

#include "kernels/attention.h"

namespace engine::cuda_ops::test {

using Doubles = std::vector<double>;

struct ReferenceAttention {
  Doubles y;           // like qkv, a third as wide
  Doubles log_sums;    // (batch, heads, length)
  Doubles magnitudes;  // of log_sums: what their rounding is relative to
  Doubles dqkv;
};

// `dy` is the gradient of y.
ReferenceAttention ComputeAttention(const AttentionShape& shape, const Doubles& qkv,
                                    const Doubles& dy);

}  // namespace engine::cuda_ops::test
