#include "bench/statistics/summary.h"

#include <numeric>

namespace engine::bench {

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Summary Summarize(const std::vector<double>& values) {
  return {.median = trace::Quantile(values, 0.5),
          .p10 = trace::Quantile(values, 0.1),
          .p90 = trace::Quantile(values, 0.9),
          .p99 = trace::Quantile(values, 0.99),
          .mean = Mean(values),
          .min = trace::Quantile(values, 0),
          .max = trace::Quantile(values, 1)};
}

}  // namespace engine::bench
