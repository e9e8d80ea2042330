// Drawings as SVG text. Colours are classes, which the style sheet of the page gives a colour for
// light and for dark.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace engine::report {

// Text as content or attribute of HTML.
std::string Escape(const std::string& text);

// Round numbers from `low` to `high`, about `wanted` of them.
std::vector<double> Ticks(double low, double high, int wanted);

// "12.5": as many digits as the distance of the ticks needs.
std::string TickLabel(double value, double distance);

// Maps [low, high] to pixels; from > to turns it round.
struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;
  double operator()(double value) const {
    return from + (value - low) / (high - low) * (to - from);
  }
};

// Coordinates are pixels of a drawing of the given size, which the page may scale.
class Svg {
 public:
  Svg(double width, double height) : width_(width), height_(height) {}

  void Line(double x1, double y1, double x2, double y2, const char* css);
  // `title`: what the browser shows when the pointer rests on it; may be empty.
  void Rect(double x, double y, double width, double height, const char* css,
            const std::string& title = "");
  void Circle(double x, double y, double radius, const char* css, const std::string& title = "");
  // Through all points, in their order.
  void Path(const std::vector<std::pair<double, double>>& points, const char* css);
  // `anchor`: start, middle or end.
  void Text(double x, double y, const char* anchor, const char* css, const std::string& text);

  // `label` says in words what can be seen; `css` is the class of the drawing.
  std::string Finish(const std::string& label, const char* css) const;

 private:
  const double width_, height_;
  std::string body_;
};

}  // namespace engine::report
