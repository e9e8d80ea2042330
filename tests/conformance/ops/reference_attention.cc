#include "tests/conformance/ops/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace engine::test {

AttentionResults ComputeAttention(const AttentionSizes& sizes, const std::vector<double>& qkv,
                                  const std::vector<double>& dy) {
  using Doubles = std::vector<double>;
  const int64_t length = sizes.length, heads = sizes.heads, size = sizes.head_size;
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const auto dot = [&](const double* a, const double* b) {
    return std::inner_product(a, a + size, b, 0.0);
  };
  const auto add = [&](double factor, const double* from, double* to) {
    for (int64_t d = 0; d < size; ++d) to[d] += factor * from[d];
  };
  const Doubles rows(qkv.size() / 3 / static_cast<size_t>(size));
  AttentionResults to = {Doubles(qkv.size() / 3), rows, rows, Doubles(qkv.size())};
  for (int64_t i = 0; i < sizes.samples * heads * length; ++i) {
    const int64_t query = i % length, head = i / length % heads, sample = i / length / heads;
    const int64_t out = ((sample * length + query) * heads + head) * size;
    // Of parts 0 (q), 1 (k) and 2 (v).
    const auto row = [&](int64_t part, int64_t j) {
      return (((sample * length + j) * 3 + part) * heads + head) * size;
    };
    const double* const q = qkv.data() + row(0, query);
    Doubles p(static_cast<size_t>(sizes.causal ? query + 1 : length)), dp(p.size());
    double sum = 0, longest = 0, mean = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      const double* const k = qkv.data() + row(1, static_cast<int64_t>(j));
      sum += p[j] = std::exp(scale * dot(q, k));
      longest = std::max(longest, dot(k, k));
    }
    double& log_sum = to.log_sums[static_cast<size_t>(i)] = std::log(sum);
    to.magnitudes[static_cast<size_t>(i)] =
        1 + std::abs(log_sum) + scale * std::sqrt(dot(q, q) * longest);
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t v = row(2, static_cast<int64_t>(j));
      p[j] /= sum;
      add(p[j], qkv.data() + v, to.y.data() + out);
      if (dy.empty()) continue;
      add(p[j], dy.data() + out, to.dqkv.data() + v);
      dp[j] = dot(dy.data() + out, qkv.data() + v);
      mean += p[j] * dp[j];
    }
    for (size_t j = 0; j < p.size() && !dy.empty(); ++j) {
      const int64_t k = row(1, static_cast<int64_t>(j));
      const double ds = scale * p[j] * (dp[j] - mean);
      add(ds, qkv.data() + k, to.dqkv.data() + row(0, query));
      add(ds, q, to.dqkv.data() + k);
    }
  }
  return to;
}

}  // namespace engine::test
