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

// What stands at a tick; null: its number.
using TickWords = std::string (*)(double value);

// A label about every 70 pixels along the x axis, every 36 along the y axis, and lines at them.
void DrawXAxis(Svg& svg, const Axis& x, double top, double bottom, const std::string& label,
               TickWords words = nullptr);
void DrawYAxis(Svg& svg, const Axis& y, double left, double right, TickWords words = nullptr);

// Values over steps. Of more than a plot can show neighbours are left out; those that are not
// finite are, too.
struct Curve {
  std::string name;
  const char* css;    // colour and form: "a plain", "a faint"; of points: "b"
  bool dots = false;  // points instead of a line
  std::vector<std::pair<double, double>> points = {};
};

struct PlotAxes {
  const char* x = "step";  // what it shows
  bool from_zero = false;  // the y axis
  TickWords x_words = nullptr, y_words = nullptr;
};

// `label` says in words what can be seen; `css` is the class of the drawing. `width`: in pixels.
std::string CurvePlot(const std::vector<Curve>& curves, const PlotAxes& axes,
                      const std::string& label, double width, const char* css);

}  // namespace engine::report
