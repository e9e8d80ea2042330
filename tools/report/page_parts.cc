#include "tools/report/page_parts.h"

#include <fmt/format.h>

#include <set>

namespace engine::report {

std::string CurveFigure(const std::string& title, std::vector<Curve> curves, const PlotAxes& axes) {
  std::erase_if(curves, [](const Curve& curve) { return curve.points.empty(); });
  if (curves.empty()) return "";
  std::string keys;
  std::set<char> colours;
  for (const Curve& curve : curves) colours.insert(curve.css[0]);
  for (const Curve& curve : curves) {
    if (colours.size() < 2 || curve.name.empty() || curve.dots) continue;
    keys += fmt::format("&emsp;<i class=\"chip {}\"></i>{}", curve.css[0], Escape(curve.name));
  }
  const auto plot = [&](double width, const char* css) {
    return CurvePlot(curves, axes, title + " over " + axes.x, width, css);
  };
  return fmt::format("<figure>\n<figcaption>{}{}</figcaption>\n{}{}</figure>\n", Escape(title),
                     keys, plot(kWide, "wide"), plot(kNarrow, "narrow"));
}

std::string Table(const std::string& title, const std::vector<Cells>& rows) {
  if (rows.size() < 2) return "";
  std::string html = fmt::format(
      "<section>\n<h2>{}</h2>\n<div class=\"scroll\"><table class=\"numbers\">\n", Escape(title));
  const char* element = "th";
  for (const Cells& row : rows) {
    html += "<tr>";
    for (const std::string& cell : row)
      html += fmt::format("<{0}>{1}</{0}>", element, Escape(cell));
    html += "</tr>\n";
    element = "td";
  }
  return html + "</table></div>\n</section>\n";
}

std::string FactTable(const std::string& title,
                      const std::vector<std::pair<std::string, std::string>>& facts) {
  if (facts.empty()) return "";
  std::string html =
      fmt::format("<section>\n<h2>{}</h2>\n<table class=\"facts\">\n", Escape(title));
  for (const auto& [name, value] : facts) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", Escape(name), Escape(value));
  }
  return html + "</table>\n</section>\n";
}

}  // namespace engine::report
