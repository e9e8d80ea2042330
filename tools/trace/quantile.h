#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace engine::trace {

// The value below which the fraction `at` of `values` lies, between neighbours interpolated; of
// none 0.
inline double Quantile(std::vector<double> values, double at) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = at * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], place - std::floor(place));
}

}  // namespace engine::trace
