// Attention in double precision, by its formulas: for the op, for kernels and for graphs.
#pragma once

#include <cstdint>
#include <vector>

namespace engine::test {

struct AttentionSizes {
  int64_t samples, length, heads, head_size;
  bool causal;
};

struct AttentionResults {
  std::vector<double> y;           // like qkv, a third as wide
  std::vector<double> log_sums;    // (samples, heads, length)
  std::vector<double> magnitudes;  // of log_sums: what their rounding is relative to
  std::vector<double> dqkv;
};

// `qkv` is (samples, length, 3, heads, head_size); `dy` is the gradient of y, or empty for the
// forward pass alone.
AttentionResults ComputeAttention(const AttentionSizes& sizes, const std::vector<double>& qkv,
                                  const std::vector<double>& dy);

}  // namespace engine::test
