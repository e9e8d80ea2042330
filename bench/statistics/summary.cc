#include "bench/statistics/summary.h"

#include <algorithm>
#include <numeric>

namespace engine::bench {

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Summary Summarize(const std::vector<double>& values) {
  return {.median = Quantile(values, 0.5),
          .p10 = Quantile(values, 0.1),
          .p90 = Quantile(values, 0.9),
          .p99 = Quantile(values, 0.99),
          .mean = Mean(values),
          .min = Quantile(values, 0),
          .max = Quantile(values, 1)};
}

}  // namespace engine::bench
