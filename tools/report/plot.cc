#include "tools/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace engine::report {
namespace {

constexpr double kHeight = 232;
constexpr size_t kMaxPoints = 1000;  // of one curve; more would only overlap

double Distance(const std::vector<double>& ticks) {
  return ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
}

// Ticks for about one label every `pixels`.
std::vector<double> TicksFor(const Axis& axis, double pixels) {
  int wanted = std::max(2, static_cast<int>(std::fabs(axis.to - axis.from) / pixels));
  std::vector<double> ticks = Ticks(axis.low, axis.high, wanted);
  // One alone gives no scale.
  while (ticks.size() < 2 && wanted < 100) ticks = Ticks(axis.low, axis.high, wanted *= 2);
  return ticks;
}

// Extremes are kept: of each group of neighbours the one that is farthest from the point before.
std::vector<std::pair<double, double>> Thinned(
    const std::vector<std::pair<double, double>>& points) {
  std::vector<std::pair<double, double>> kept;
  const size_t stride = points.size() / kMaxPoints + 1;
  for (size_t begin = 0; begin < points.size(); begin += stride) {
    const double before = kept.empty() ? points[begin].second : kept.back().second;
    kept.push_back(*std::max_element(
        points.begin() + static_cast<std::ptrdiff_t>(begin),
        points.begin() + static_cast<std::ptrdiff_t>(std::min(begin + stride, points.size())),
        [&](const auto& a, const auto& b) {
          return std::fabs(a.second - before) < std::fabs(b.second - before);
        }));
  }
  return kept;
}

void Draw(Svg& svg, const Curve& curve, const Axis& x, const Axis& y) {
  std::vector<std::pair<double, double>> finite;
  for (const auto& point : curve.points) {
    if (std::isfinite(point.second)) finite.push_back(point);
  }
  std::vector<std::pair<double, double>> pixels;
  for (const auto& [step, value] : Thinned(finite)) pixels.emplace_back(x(step), y(value));
  if (!curve.dots && pixels.size() > 1) return svg.Path(pixels, curve.css);
  for (const auto& [at, height] : pixels) svg.Circle(at, height, 3.2, curve.css, curve.name);
}

}  // namespace

void Range::Add(double value) {
  low = std::min(low, value);
  high = std::max(high, value);
}

Range Range::Padded() const {
  if (!(high >= low)) return {0, 1};
  const double least = high == 0 && low == 0 ? 1 : 1e-12;
  const double air = std::max({(high - low) * 0.06, std::fabs(high) * 1e-4, least});
  return {low - air, high + air};
}

void DrawXAxis(Svg& svg, const Axis& x, double top, double bottom, const std::string& label,
               TickWords words) {
  const std::vector<double> ticks = TicksFor(x, 70);
  for (const double tick : ticks) {
    svg.Line(x(tick), top, x(tick), bottom, "rule");
    svg.Text(x(tick), bottom + 15, "middle", "tick",
             words != nullptr ? words(tick) : TickLabel(tick, Distance(ticks)));
  }
  svg.Text((x.from + x.to) / 2, bottom + 32, "middle", "axis", label);
}

void DrawYAxis(Svg& svg, const Axis& y, double left, double right, TickWords words) {
  const std::vector<double> ticks = TicksFor(y, 36);
  for (const double tick : ticks) {
    svg.Line(left, y(tick), right, y(tick), "rule");
    svg.Text(left - 6, y(tick) + 4, "end", "tick",
             words != nullptr ? words(tick) : TickLabel(tick, Distance(ticks)));
  }
}

std::string CurvePlot(const std::vector<Curve>& curves, const PlotAxes& axes,
                      const std::string& label, double width, const char* css) {
  Range steps, values;
  for (const Curve& curve : curves) {
    for (const auto& [step, value] : curve.points) {
      steps.Add(step);
      if (std::isfinite(value)) values.Add(value);
    }
  }
  if (!(steps.high > steps.low)) steps = steps.Padded();
  if (axes.from_zero) values.Add(0);
  values = values.Padded();
  if (axes.from_zero) values.low = 0;
  const Axis x{steps.low, steps.high, kLeft, width - kRight};
  const Axis y{values.low, values.high, kHeight - kBottom, kTop};
  Svg svg(width, kHeight);
  DrawYAxis(svg, y, kLeft, width - kRight, axes.y_words);
  DrawXAxis(svg, x, kTop, kHeight - kBottom, axes.x, axes.x_words);
  for (const Curve& curve : curves) Draw(svg, curve, x, y);
  return svg.Finish(label, css);
}

}  // namespace engine::report
