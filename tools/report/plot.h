// Axes and curves of report pages, in pixels of a drawing.
#pragma once

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tools/report/svg.h"

namespace engine::report {

// Room around the plane of a plot, for the labels of its axes.
constexpr double kTop = 10, kBottom = 38, kLeft = 54, kRight = 12;

// The least and the largest of some values.
struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double value);
  // With some air on both sides, and never empty.
  Range Padded() const;
};

// A label about every 70 pixels along the x axis, every 36 along the y axis, and lines at them.
void DrawXAxis(Svg& svg, const Axis& x, double top, double bottom, const std::string& label);
void DrawYAxis(Svg& svg, const Axis& y, double left, double right);

// Values over steps. Of more than a plot can show neighbours are left out; those that are not
// finite are, too.
struct Curve {
  std::string name;
  const char* css;    // colour and form: "a plain", "a faint"; of points: "b"
  bool dots = false;  // points instead of a line
  std::vector<std::pair<double, double>> points = {};
};

// `label` says in words what can be seen; `css` is the class of the drawing. `width`: in pixels.
// `from_zero`: the y axis begins at 0.
std::string CurvePlot(const std::vector<Curve>& curves, bool from_zero, const std::string& label,
                      double width, const char* css);

}  // namespace engine::report
