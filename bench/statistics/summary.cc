#include "bench/statistics/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace engine::bench {
namespace {

double QuantileOfSorted(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

}  // namespace

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return QuantileOfSorted(values, q);
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Summary Summarize(const std::vector<double>& values) {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.empty()) return {};
  return {.median = QuantileOfSorted(sorted, 0.5),
          .p10 = QuantileOfSorted(sorted, 0.1),
          .p90 = QuantileOfSorted(sorted, 0.9),
          .p99 = QuantileOfSorted(sorted, 0.99),
          .mean = Mean(sorted),
          .min = sorted.front(),
          .max = sorted.back()};
}

}  // namespace engine::bench
