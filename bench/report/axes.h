// What the plots of all pages have in common: margins, ranges, and axes with ticks.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "bench/report/svg.h"

namespace engine::bench {

// Room around a plot for its labels, in pixels.
inline constexpr double kTop = 10, kBottom = 38, kLeft = 46, kRight = 12;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // With some air on both sides, and never empty.
  Range Padded() const {
    if (!(high >= low)) return {0, 1};
    const double air = std::max((high - low) * 0.06, std::max(std::fabs(high) * 1e-4, 1e-12));
    return {low - air, high + air};
  }
};

// Rules and labels of `x` between the rows `top` and `bottom`, and of `y` between two columns.
void DrawXAxis(Svg& svg, const Axis& x, double top, double bottom, const std::string& label);
void DrawYAxis(Svg& svg, const Axis& y, double left, double right);

}  // namespace engine::bench
