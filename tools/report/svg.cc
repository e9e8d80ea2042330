#include "tools/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace engine::report {
namespace {

std::string Closing(const char* element, const std::string& title) {
  if (title.empty()) return "/>";
  return fmt::format("><title>{}</title></{}>", Escape(title), element);
}

}  // namespace

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    constexpr std::string_view kSpecial = "&<>\"";
    constexpr const char* kEntities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    const size_t special = kSpecial.find(c);
    special == std::string_view::npos ? escaped += c : escaped += kEntities[special];
  }
  return escaped;
}

std::vector<double> Ticks(double low, double high, int wanted) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / std::max(wanted, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double distance = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      distance = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (double i = std::ceil(low / distance - 1e-9); i * distance <= high + 1e-9 * distance; ++i) {
    ticks.push_back(i * distance);
  }
  return ticks;
}

std::string TickLabel(double value, double distance) {
  const int digits = std::max(static_cast<int>(std::ceil(-std::log10(distance) - 1e-9)), 0);
  if (value != 0 && (digits > 4 || std::fabs(value) >= 1e6)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.{}f}", value == 0 ? 0.0 : value, digits);
}

void Svg::Line(double x1, double y1, double x2, double y2, const char* css) {
  body_ +=
      fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                  css, x1, y1, x2, y2);
}

void Svg::Rect(double x, double y, double width, double height, const char* css,
               const std::string& title) {
  body_ += fmt::format(
      "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"{}\n", css, x,
      y, width, height, Closing("rect", title));
}

void Svg::Circle(double x, double y, double radius, const char* css, const std::string& title) {
  body_ += fmt::format("<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\"{}\n", css, x,
                       y, radius, Closing("circle", title));
}

void Svg::Path(const std::vector<std::pair<double, double>>& points, const char* css) {
  if (points.empty()) return;
  body_ += fmt::format("<path class=\"{}\" d=\"", css);
  char command = 'M';
  for (const auto& [x, y] : points) {
    body_ += fmt::format("{}{:.1f} {:.1f}", std::exchange(command, 'L'), x, y);
  }
  body_ += "\"/>\n";
}

void Svg::Text(double x, double y, const char* anchor, const char* css, const std::string& text) {
  body_ +=
      fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n",
                  css, x, y, anchor, Escape(text));
}

std::string Svg::Finish(const std::string& label, const char* css) const {
  return fmt::format(
      "<svg class=\"{}\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.1f} {:.1f}\">\n{}</svg>\n",
      css, Escape(label), width_, height_, body_);
}

}  // namespace engine::report
