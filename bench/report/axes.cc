#include "bench/report/axes.h"

#include <vector>

namespace engine::bench {
namespace {

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

}  // namespace

void DrawXAxis(Svg& svg, const Axis& x, double top, double bottom, const std::string& label) {
  const std::vector<double> ticks = TicksFor(x, 70);
  for (const double tick : ticks) {
    svg.Line(x(tick), top, x(tick), bottom, "rule");
    svg.Text(x(tick), bottom + 15, "middle", "tick", TickLabel(tick, Distance(ticks)));
  }
  svg.Text((x.from + x.to) / 2, bottom + 32, "middle", "axis", label);
}

void DrawYAxis(Svg& svg, const Axis& y, double left, double right) {
  const std::vector<double> ticks = TicksFor(y, 36);
  for (const double tick : ticks) {
    svg.Line(left, y(tick), right, y(tick), "rule");
    svg.Text(left - 6, y(tick) + 4, "end", "tick", TickLabel(tick, Distance(ticks)));
  }
}

}  // namespace engine::bench
