// The page of a run. It asks for nothing, as that of a comparison.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/report/axes.h"
#include "bench/report/page_head.h"
#include "bench/report/run_log.h"
#include "bench/report/svg.h"

namespace engine::bench {
namespace {

using Json = nlohmann::json;
using Curve = RunLog::Curve;

constexpr double kWide = 540, kNarrow = 340, kHeight = 232;
constexpr size_t kMostDots = 400, kMostMeans = 120;

// Dots for steps and a line of means over parts of the run; `held_out` beside them.
std::string Plot(const Curve& curve, const Curve& held_out, double width, const char* css,
                 const std::string& title) {
  Range range;
  for (const Curve* one : {&curve, &held_out}) {
    for (const auto& [step, value] : *one) range.Add(value);
  }
  range = range.Padded();
  Svg svg(width, kHeight);
  const int64_t last = std::max(curve.rbegin()->first, curve.begin()->first + 1);
  const Axis x{static_cast<double>(curve.begin()->first), static_cast<double>(last), kLeft,
               width - kRight};
  const Axis y{range.low, range.high, kHeight - kBottom, kTop};
  DrawYAxis(svg, y, kLeft, width - kRight);
  DrawXAxis(svg, x, kTop, kHeight - kBottom, "step");
  const size_t stride = curve.size() / kMostDots + 1, part = curve.size() / kMostMeans + 1;
  std::vector<std::pair<double, double>> means;
  double sum = 0;
  size_t i = 0;
  for (const auto& [step, value] : curve) {
    const auto at = static_cast<double>(step);
    if (i % stride == 0) svg.Circle(x(at), y(value), 1.4, "a dot");
    sum += value;
    if (++i % part != 0) continue;
    means.emplace_back(x(at), y(sum / static_cast<double>(part)));
    sum = 0;
  }
  svg.Path(means, "a line");
  std::vector<std::pair<double, double>> points;
  for (const auto& [step, value] : held_out) {
    points.emplace_back(x(static_cast<double>(step)), y(value));
    svg.Circle(points.back().first, points.back().second, 3.5, "b",
               fmt::format("step {}: {:.4g}", step, value));
  }
  svg.Path(points, "b line");
  return svg.Finish(title + " over the steps", css);
}

Curve Scaled(Curve curve, double factor) {
  for (auto& [step, value] : curve) value *= factor;
  return curve;
}

// In a unit whose labels are short: rates are small numbers, and throughput may be a large one.
std::string Figure(std::string title, Curve curve, Curve held_out = {}) {
  if (curve.empty()) return "";
  double largest = 0;
  for (const auto& [step, value] : curve) largest = std::max(largest, std::fabs(value));
  int power = 0;
  for (; largest > 0 && largest < 0.1 && power > -12; power -= 3) largest *= 1000;
  for (; largest >= 10000 && power < 12; power += 3) largest /= 1000;
  if (power != 0) title += fmt::format(", in 1e{}", power);
  curve = Scaled(std::move(curve), std::pow(10.0, -power));
  held_out = Scaled(std::move(held_out), std::pow(10.0, -power));
  const std::string legend =
      held_out.empty() ? "" : " <i class=\"chip a\"></i>training <i class=\"chip b\"></i>held out";
  return fmt::format("<figure>\n<figcaption>{}{}</figcaption>\n{}{}</figure>\n", Escape(title),
                     legend, Plot(curve, held_out, kWide, "wide", title),
                     Plot(curve, held_out, kNarrow, "narrow", title));
}

const Curve& CurveOf(const std::map<std::string, Curve>& curves, const std::string& key) {
  static const Curve kNone;
  const auto found = curves.find(key);
  return found == curves.end() ? kNone : found->second;
}

// factor * a / b where both are known, b being above 0.
Curve Ratio(const Curve& a, const Curve& b, double factor) {
  Curve ratio;
  for (const auto& [step, value] : a) {
    const auto other = b.find(step);
    if (other != b.end() && other->second > 0) ratio[step] = factor * value / other->second;
  }
  return ratio;
}

double Median(const Curve& curve) {
  std::vector<double> values;
  for (const auto& [step, value] : curve) values.push_back(value);
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

std::string Summary(const RunLog& log, const Curve& speed, const Curve& exposed) {
  const Curve& loss = CurveOf(log.steps, "loss");
  const Curve& held_out = CurveOf(log.evaluations, "loss");
  std::string words;
  if (!loss.empty()) {
    words = fmt::format("{} steps; the last has a loss of {:.4f}", loss.rbegin()->first,
                        loss.rbegin()->second);
  }
  if (!held_out.empty()) {
    const auto best =
        std::ranges::min_element(held_out, {}, [](const auto& entry) { return entry.second; });
    words += fmt::format("; held out the best is {:.4f}, after step {}", best->second, best->first);
  }
  if (!speed.empty()) words += fmt::format("; {:.0f} samples/s", Median(speed));
  if (!exposed.empty()) words += fmt::format("; communication exposed {:.1f} %", Median(exposed));
  return "<section>\n<div class=\"words\">" + Escape(words) + "</div>\n</section>\n<br>\n";
}

std::string Table(const std::string& title, const std::vector<std::string>& heads,
                  const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return "";
  std::string html =
      "<section>\n<h2>" + title + "</h2>\n<div class=\"scroll\"><table class=\"numbers\">\n<tr>";
  for (const std::string& head : heads) html += "<th>" + Escape(head) + "</th>";
  for (const auto& row : rows) {
    html += "</tr>\n<tr>";
    for (const std::string& cell : row) html += "<td>" + Escape(cell) + "</td>";
  }
  return html + "</tr>\n</table></div>\n</section>\n";
}

std::string Evaluations(const RunLog& log) {
  std::vector<std::string> heads = {"step"};
  for (const auto& [key, curve] : log.evaluations) heads.push_back(key);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [step, loss] : CurveOf(log.evaluations, "loss")) {
    std::vector<std::string>& row = rows.emplace_back(std::vector{std::to_string(step)});
    for (const auto& [key, curve] : log.evaluations) {
      const auto value = curve.find(step);
      row.push_back(value == curve.end() ? "" : fmt::format("{:.6g}", value->second));
    }
  }
  return Table("Evaluations", heads, rows);
}

// Which classes are taken for which, the most frequent first.
std::string Mistakes(const Json& evaluation) {
  constexpr size_t kMost = 20;
  const Json classes = evaluation.value("classes", Json::array());
  const auto name = [&](size_t number) {
    const bool named = number < classes.size() && classes[number].contains("name");
    return named ? classes[number]["name"].get<std::string>() : std::to_string(number);
  };
  std::vector<std::tuple<double, size_t, size_t>> pairs;
  const Json confusion = evaluation.value("confusion", Json::array());
  for (size_t row = 0; row < confusion.size(); ++row) {
    for (size_t column = 0; column < confusion[row].size(); ++column) {
      const double count = confusion[row][column];
      if (row != column && count > 0) pairs.emplace_back(-count, row, column);
    }
  }
  std::ranges::sort(pairs);
  std::vector<std::vector<std::string>> rows;
  for (const auto& [count, is, taken] : pairs) {
    if (rows.size() < kMost) rows.push_back({fmt::format("{:g}", -count), name(is), name(taken)});
  }
  return Table("Mistakes", {"samples", "class", "taken for"}, rows);
}

std::string Classes(const Json& evaluation) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& one : evaluation.value("classes", Json::array())) {
    const auto number = [&](const char* key) { return fmt::format("{:.4g}", one.value(key, 0.0)); };
    rows.push_back({one.value("name", number("class")), number("targets"), number("predicted"),
                    number("precision"), number("recall")});
  }
  return Table("Classes", {"class", "targets", "predicted", "precision", "recall"}, rows);
}

Result<std::string> Measured(const std::string& evaluation) {
  if (evaluation.empty()) return std::string();
  try {
    const Json measured = Json::parse(evaluation);
    if (measured.contains("loss")) return Classes(measured) + Mistakes(measured);
  } catch (const Json::exception&) {
    // As something else.
  }
  return Status::Error(StatusCode::kBadData,
                       "the evaluation is not what `engine eval --json` prints");
}

}  // namespace

Result<std::string> RunHtml(const RunLog& log, const std::string& title,
                            const std::string& evaluation) {
  ENGINE_ASSIGN_OR_RETURN(const std::string measured, Measured(evaluation));
  const Curve& seconds = CurveOf(log.steps, "seconds");
  const Curve speed = Ratio(CurveOf(log.steps, "samples"), seconds, 1);
  const Curve exposed = Ratio(CurveOf(log.steps, "communication_seconds"), seconds, 100);
  std::string html = std::string(PageHead()) +
                     "<body>\n<main>\n<h1>engine report: " + Escape(title) + "</h1>\n" +
                     Summary(log, speed, exposed) + "<div class=\"grid\">\n";
  html += Figure("Loss", CurveOf(log.steps, "loss"), CurveOf(log.evaluations, "loss"));
  html += Figure("Learning rate", CurveOf(log.steps, "learning_rate"));
  html += Figure("Accuracy", CurveOf(log.steps, "accuracy"), CurveOf(log.evaluations, "accuracy"));
  html += Figure("Samples per second", speed);
  html += Figure("Exposed communication, % of a step", exposed);
  html +=
      Figure("Peak memory of rank 0 in MB", Scaled(CurveOf(log.steps, "peak_memory_bytes"), 1e-6));
  for (const auto& [name, curve] : log.metrics) html += Figure(name, curve);
  html += "</div>\n<div class=\"loose\">\n" + Evaluations(log) + measured + "</div>\n";
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace engine::bench
