#include "bench/report/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace engine::bench {
namespace {

std::string Px(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

std::string Attribute(const char* name, double value) {
  return std::string(" ") + name + "=\"" + Px(value) + "\"";
}

std::string Class(const char* css) {
  return std::string(" class=\"") + css + "\"";
}

std::string Closing(const char* element, const std::string& title) {
  if (title.empty()) return "/>";
  return std::string("><title>").append(Escape(title)).append("</title></").append(element) + ">";
}

}  // namespace

std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
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
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(distance) - 1e-9)), 0, 6);
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", digits, value == 0 ? 0.0 : value);
  return text;
}

void Svg::Line(double x1, double y1, double x2, double y2, const char* css) {
  body_ += "<line" + Class(css) + Attribute("x1", x1) + Attribute("y1", y1) + Attribute("x2", x2) +
           Attribute("y2", y2) + "/>\n";
}

void Svg::Rect(double x, double y, double width, double height, const char* css,
               const std::string& title) {
  body_ += "<rect" + Class(css) + Attribute("x", x) + Attribute("y", y) +
           Attribute("width", width) + Attribute("height", height) + Closing("rect", title) + "\n";
}

void Svg::Circle(double x, double y, double radius, const char* css, const std::string& title) {
  body_ += "<circle" + Class(css) + Attribute("cx", x) + Attribute("cy", y) +
           Attribute("r", radius) + Closing("circle", title) + "\n";
}

void Svg::Path(const std::vector<std::pair<double, double>>& points, const char* css) {
  if (points.empty()) return;
  body_ += "<path" + Class(css) + " d=\"";
  for (size_t i = 0; i < points.size(); ++i) {
    body_ += i == 0 ? 'M' : 'L';
    body_ += Px(points[i].first) + " " + Px(points[i].second);
  }
  body_ += "\"/>\n";
}

void Svg::Text(double x, double y, const char* anchor, const char* css, const std::string& text) {
  body_ += "<text" + Class(css) + Attribute("x", x) + Attribute("y", y) + " text-anchor=\"" +
           anchor + "\">" + Escape(text) + "</text>\n";
}

std::string Svg::Finish(const std::string& label, const char* css) const {
  return std::string("<svg class=\"") + css + "\" role=\"img\" aria-label=\"" + Escape(label) +
         "\" viewBox=\"0 0 " + Px(width_) + " " + Px(height_) + "\">\n" + body_ + "</svg>\n";
}

}  // namespace engine::bench
