// Order statistics of measured times.
#pragma once

#include <vector>

namespace engine::bench {

// The q-quantile, 0 <= q <= 1, with linear interpolation between order statistics; 0 of nothing.
double Quantile(std::vector<double> values, double q);

inline double Median(std::vector<double> values) {
  return Quantile(std::move(values), 0.5);
}

double Mean(const std::vector<double>& values);  // 0 of nothing

struct Summary {
  double median = 0, p10 = 0, p90 = 0, p99 = 0, mean = 0, min = 0, max = 0;
};
Summary Summarize(const std::vector<double>& values);

}  // namespace engine::bench
