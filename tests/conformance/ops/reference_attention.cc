#include "tests/conformance/ops/reference_attention.h"

#include <algorithm>
#include <cmath>

namespace engine::test {
namespace {

using Doubles = std::vector<double>;

double Dot(const double* a, const double* b, int64_t size) {
  double sum = 0;
  for (int64_t d = 0; d < size; ++d) sum += a[d] * b[d];
  return sum;
}

void Add(double factor, const double* from, int64_t size, double* to) {
  for (int64_t d = 0; d < size; ++d) to[d] += factor * from[d];
}

// One head of one sample.
class Head {
 public:
  Head(const AttentionSizes& of, int64_t index, const Doubles& qkv, const Doubles& dy,
       AttentionResults& to)
      : of_(of),
        width_(of.heads * of.head_size),
        begin_(index / of.heads * of.length * width_),
        head_(index % of.heads * of.head_size),
        statistics_(index * of.length),
        qkv_(qkv),
        dy_(dy),
        to_(to) {}

  void Compute(int64_t query) {
    const int64_t keys = of_.causal ? query + 1 : of_.length;
    const double* const q = qkv_.data() + In(0, query);
    const double scale = 1 / std::sqrt(static_cast<double>(of_.head_size));
    Doubles p(static_cast<size_t>(keys));
    double sum = 0, longest = 0;
    for (int64_t j = 0; j < keys; ++j) {
      const double* const k = qkv_.data() + In(1, j);
      sum += p[static_cast<size_t>(j)] = std::exp(scale * Dot(q, k, of_.head_size));
      longest = std::max(longest, Dot(k, k, of_.head_size));
    }
    const auto row = static_cast<size_t>(statistics_ + query);
    to_.log_sums[row] = std::log(sum);
    to_.magnitudes[row] =
        1 + std::abs(to_.log_sums[row]) + scale * std::sqrt(Dot(q, q, of_.head_size) * longest);
    for (int64_t j = 0; j < keys; ++j) {
      p[static_cast<size_t>(j)] /= sum;
      Add(p[static_cast<size_t>(j)], qkv_.data() + In(2, j), of_.head_size,
          to_.y.data() + Out(query));
    }
    if (!dy_.empty()) Differentiate(query, p, scale);
  }

 private:
  // Where row i of part 0 (q), 1 (k) or 2 (v) is, and of y.
  int64_t In(int part, int64_t i) const {
    return 3 * (begin_ + i * width_) + part * width_ + head_;
  }
  int64_t Out(int64_t i) const { return begin_ + i * width_ + head_; }

  void Differentiate(int64_t query, const Doubles& p, double scale) {
    const double* const dy = dy_.data() + Out(query);
    double* const dqkv = to_.dqkv.data();
    Doubles dp(p.size());
    double dot = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t v = In(2, static_cast<int64_t>(j));
      Add(p[j], dy, of_.head_size, dqkv + v);
      dp[j] = Dot(dy, qkv_.data() + v, of_.head_size);
      dot += p[j] * dp[j];
    }
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t q = In(0, query), k = In(1, static_cast<int64_t>(j));
      const double ds = scale * p[j] * (dp[j] - dot);
      Add(ds, qkv_.data() + k, of_.head_size, dqkv + q);
      Add(ds, qkv_.data() + q, of_.head_size, dqkv + k);
    }
  }

  const AttentionSizes& of_;
  const int64_t width_, begin_, head_, statistics_;
  const Doubles &qkv_, &dy_;
  AttentionResults& to_;
};

}  // namespace

AttentionResults ComputeAttention(const AttentionSizes& sizes, const Doubles& qkv,
                                  const Doubles& dy) {
  const Doubles rows(qkv.size() / 3 / static_cast<size_t>(sizes.head_size));
  AttentionResults results = {Doubles(qkv.size() / 3), rows, rows, Doubles(qkv.size())};
  for (int64_t i = 0; i < sizes.samples * sizes.heads; ++i) {
    Head head(sizes, i, qkv, dy, results);
    for (int64_t query = 0; query < sizes.length; ++query) head.Compute(query);
  }
  return results;
}

}  // namespace engine::test
