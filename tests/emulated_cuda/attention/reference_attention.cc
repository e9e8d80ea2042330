#include "tests/emulated_cuda/attention/reference_attention.h"

#include <algorithm>
#include <cmath>

namespace engine::cuda_ops::test {
namespace {

// One head of one sample: offsets of its rows.
struct Head {
  size_t q, k, v, y, statistics;
  size_t packed, plain;  // strides

  Head(const AttentionShape& shape, int32_t sample, int32_t head)
      : q(static_cast<size_t>(shape.packed_offset(sample, head, QkvPart::kQuery))),
        k(static_cast<size_t>(shape.packed_offset(sample, head, QkvPart::kKey))),
        v(static_cast<size_t>(shape.packed_offset(sample, head, QkvPart::kValue))),
        y(static_cast<size_t>(shape.row_offset(sample, head))),
        statistics(static_cast<size_t>(shape.statistics_offset(sample, head))),
        packed(static_cast<size_t>(shape.packed_width())),
        plain(static_cast<size_t>(shape.width())) {}
};

double Dot(const Doubles& a, size_t i, const Doubles& b, size_t j, size_t size) {
  double sum = 0;
  for (size_t d = 0; d < size; ++d) sum += a[i + d] * b[j + d];
  return sum;
}

void Add(double factor, const Doubles& from, size_t i, size_t size, Doubles* to, size_t j) {
  for (size_t d = 0; d < size; ++d) (*to)[j + d] += factor * from[i + d];
}

void ComputeQuery(const AttentionShape& shape, const Head& head, size_t query, const Doubles& qkv,
                  const Doubles& dy, ReferenceAttention* result) {
  const auto size = static_cast<size_t>(shape.head_size);
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  const size_t keys = shape.causal ? query + 1 : static_cast<size_t>(shape.length);
  const size_t q = head.q + query * head.packed, y = head.y + query * head.plain;
  Doubles p(keys);
  double sum = 0, dot = 0, longest = 0;
  for (size_t j = 0; j < keys; ++j) {
    p[j] = std::exp(scale * Dot(qkv, q, qkv, head.k + j * head.packed, size));
    sum += p[j];
    longest =
        std::max(longest, Dot(qkv, head.k + j * head.packed, qkv, head.k + j * head.packed, size));
  }
  const size_t row = head.statistics + query;
  result->log_sums[row] = std::log(sum);
  result->magnitudes[row] =
      1 + std::abs(std::log(sum)) + scale * std::sqrt(Dot(qkv, q, qkv, q, size) * longest);
  Doubles dp(keys);
  for (size_t j = 0; j < keys; ++j) {
    const size_t v = head.v + j * head.packed;
    p[j] /= sum;
    Add(p[j], qkv, v, size, &result->y, y);
    Add(p[j], dy, y, size, &result->dqkv, v);
    dp[j] = Dot(dy, y, qkv, v, size);
    dot += p[j] * dp[j];
  }
  for (size_t j = 0; j < keys; ++j) {
    const size_t k = head.k + j * head.packed;
    const double ds = scale * p[j] * (dp[j] - dot);
    Add(ds, qkv, k, size, &result->dqkv, q);
    Add(ds, qkv, q, size, &result->dqkv, k);
  }
}

}  // namespace

ReferenceAttention ComputeAttention(const AttentionShape& shape, const Doubles& qkv,
                                    const Doubles& dy) {
  const Doubles rows(dy.size() / static_cast<size_t>(shape.head_size));
  ReferenceAttention result = {Doubles(dy.size()), rows, rows, Doubles(qkv.size())};
  for (int32_t sample = 0; sample < shape.batch; ++sample) {
    for (int32_t h = 0; h < shape.heads; ++h) {
      const Head head(shape, sample, h);
      for (size_t query = 0; query < static_cast<size_t>(shape.length); ++query) {
        ComputeQuery(shape, head, query, qkv, dy, &result);
      }
    }
  }
  return result;
}

}  // namespace engine::cuda_ops::test
