// Order statistics of measured times.
#pragma once

#include <utility>
#include <vector>

#include "tools/trace/quantile.h"

namespace engine::bench {

using trace::Quantile;

inline double Median(std::vector<double> values) {
  return Quantile(std::move(values), 0.5);
}

double Mean(const std::vector<double>& values);  // 0 of nothing

struct Summary {
  double median = 0, p10 = 0, p90 = 0, p99 = 0, mean = 0, min = 0, max = 0;
};
Summary Summarize(const std::vector<double>& values);

}  // namespace engine::bench
