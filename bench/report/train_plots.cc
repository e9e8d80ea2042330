#include "bench/report/train_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "bench/report/facts.h"
#include "tools/report/plot.h"

namespace engine::bench {
namespace {

using report::Axis, report::DrawXAxis, report::DrawYAxis, report::Range, report::Svg;
using report::kBottom, report::kLeft, report::kRight, report::kTop;

constexpr size_t kMaxPoints = 400;  // of one side or curve; more would only overlap

const char* CssOf(SideId side) {
  constexpr const char* kClasses[] = {"a", "b", "n"};
  return kClasses[static_cast<int>(side)];
}

std::string Css(SideId side, const char* rest) {
  return std::string(CssOf(side)) + " " + rest;
}

std::vector<double> InMilliseconds(std::vector<double> seconds) {
  for (double& value : seconds) value *= 1e3;
  return seconds;
}

// The same scatter for the same index, between -1 and 1.
double Scatter(size_t index) {
  const auto mixed = static_cast<uint32_t>(index) * 2654435761u;
  return static_cast<double>(mixed >> 8) / (1 << 23) - 1;
}

void DrawStrip(Svg& svg, const Axis& x, double y, double height, SideId side,
               const std::vector<double>& steps) {
  const size_t stride = std::max<size_t>(1, steps.size() / kMaxPoints);
  for (size_t i = 0; i < steps.size(); i += stride) {
    if (steps[i] < x.low || steps[i] > x.high) continue;
    svg.Circle(x(steps[i]), y + height / 2 * Scatter(i), 1.7, Css(side, "dot").c_str());
  }
  const auto beyond =
      std::count_if(steps.begin(), steps.end(), [&](double step) { return step > x.high; });
  if (beyond == 0) return;
  svg.Text(x.to, y - height / 2 - 4, "end", "tick", std::to_string(beyond) + " slower \u2192");
}

void DrawBox(Svg& svg, const Axis& x, double y, SideId side, const std::vector<double>& steps) {
  const double p10 = trace::Quantile(steps, 0.1), p25 = trace::Quantile(steps, 0.25),
               median = trace::Quantile(steps, 0.5), p75 = trace::Quantile(steps, 0.75),
               p90 = trace::Quantile(steps, 0.9);
  const std::string words = fmt::format("{}: median {:.3f} ms, half between {:.3f} and {:.3f} ms",
                                        Name(side), median, p25, p75);
  svg.Line(x(p10), y, x(p90), y, Css(side, "stroke").c_str());
  svg.Rect(x(p25), y - 7, std::max(1.0, x(p75) - x(p25)), 14, Css(side, "box").c_str(), words);
  svg.Line(x(median), y - 9, x(median), y + 9, Css(side, "median").c_str());
}

}  // namespace

std::string StepTimePlot(const TrainResult& result, double width, const char* css) {
  constexpr double kRow = 72;
  const std::vector<SideId> sides = SidesOf(result);
  const double height = kTop + kRow * static_cast<double>(sides.size()) + kBottom;
  Svg svg(width, height);
  Range range;
  for (const SideId side : sides) {
    const std::vector<double> steps = InMilliseconds(StepsOf(result, side));
    const double p10 = trace::Quantile(steps, 0.1), p90 = trace::Quantile(steps, 0.9);
    const double reach =
        0.75 * (p90 - p10);  // stragglers beyond it are counted, not drawn to scale
    range.Add(std::max(p10 - reach, trace::Quantile(steps, 0)));
    range.Add(std::min(p90 + reach, trace::Quantile(steps, 1)));
  }
  range = range.Padded();
  const Axis x{range.low, range.high, kLeft, width - kRight};
  DrawXAxis(svg, x, kTop, height - kBottom, "time of a step in ms");
  for (size_t i = 0; i < sides.size(); ++i) {
    const std::vector<double> steps = InMilliseconds(StepsOf(result, sides[i]));
    const double top = kTop + kRow * static_cast<double>(i);
    svg.Text(kLeft - 10, top + 40, "end", Css(sides[i], "name").c_str(), Name(sides[i]));
    DrawStrip(svg, x, top + 48, 26, sides[i], steps);
    DrawBox(svg, x, top + 18, sides[i], steps);
  }
  return svg.Finish("Distribution of step times of each side", css);
}

std::string RunOrderPlot(const TrainResult& result, double width, const char* css) {
  constexpr double kHeight = 232;
  Svg svg(width, kHeight);
  Range range;
  for (const RunResult& run : result.runs) range.Add(1e3 * Median(run.step_seconds));
  const double air = 0.25 * (range.high - range.low);  // for quartiles; the rest is cut off
  range = Range{std::max(0.0, range.low - air), range.high + air}.Padded();
  const Axis y{range.low, range.high, kHeight - kBottom, kTop};
  const Axis x{0.0, static_cast<double>(std::max<size_t>(1, result.runs.size())), kLeft,
               width - kRight};
  for (size_t i = 0; i < result.runs.size(); ++i) {
    if (result.runs[i].block % 2 == 0) continue;
    const auto left = static_cast<double>(i);
    svg.Rect(x(left), kTop, x(left + 1) - x(left), kHeight - kBottom - kTop, "band");
  }
  DrawYAxis(svg, y, kLeft, width - kRight);
  const bool labels = x(1) - x(0) > 11;
  for (size_t i = 0; i < result.runs.size(); ++i) {
    const RunResult& run = result.runs[i];
    const double place = x(static_cast<double>(i) + 0.5);
    const double median = 1e3 * Median(run.step_seconds);
    const std::string words = fmt::format("run {}, block {}, {}: median {:.3f} ms", i + 1,
                                          run.block + 1, Name(run.side), median);
    const auto quartile = [&](double q) {
      return y(std::clamp(1e3 * trace::Quantile(run.step_seconds, q), y.low, y.high));
    };
    svg.Line(place, quartile(0.25), place, quartile(0.75), Css(run.side, "stroke").c_str());
    svg.Circle(place, y(median), 4.5, Css(run.side, "point").c_str(), words);
    const char* const letter = run.side == SideId::kNull ? "0" : Name(run.side);
    if (labels) {
      svg.Text(place, kHeight - kBottom + 15, "middle", Css(run.side, "letter").c_str(), letter);
    }
  }
  svg.Text((x.from + x.to) / 2, kHeight - 6, "middle", "axis",
           "runs in order, block by block; ms, with quartiles");
  return svg.Finish("Median step time of each run in the order of the runs", css);
}

std::string RatioPlot(const TrainResult& result, double width, const char* css) {
  const Ratio& ratio = result.ratio;
  const bool judged = !result.refused;
  const bool bounded = judged && std::isfinite(ratio.high) && ratio.low > 0;
  const double row = ratio.by_pair.size() > 12 ? 9 : 16;
  const double below = kTop + 12 + row * static_cast<double>(ratio.by_pair.size());
  const double height = below + 44 + kBottom;
  Svg svg(width, height);
  Range range;
  range.Add(1);
  for (const double of_pair : ratio.by_pair) range.Add(of_pair);
  // A wild interval must not squeeze the pairs into a line.
  const double reach = 3 * std::max(std::fabs(ratio.estimate - 1), 0.02);
  if (bounded) {
    range.Add(std::max(ratio.low, ratio.estimate - reach));
    range.Add(std::min(ratio.high, ratio.estimate + reach));
  }
  range = range.Padded();
  const Axis x{range.low, range.high, kLeft, width - kRight};
  DrawXAxis(svg, x, kTop, height - kBottom, "speed of B over A; right of 1: B is faster");
  svg.Line(x(1), kTop, x(1), height - kBottom, "one");
  svg.Text(kLeft - 8, kTop + 16, "end", "tick", "pairs");
  for (size_t i = 0; i < ratio.by_pair.size(); ++i) {
    const std::string words = fmt::format("pair {}: {:.4f}", i + 1, ratio.by_pair[i]);
    svg.Circle(x(ratio.by_pair[i]), kTop + 12 + row * static_cast<double>(i), row > 10 ? 4 : 3,
               "pair", words);
  }
  const double middle = below + 16;
  if (!judged) {
    svg.Text((x.from + x.to) / 2, middle + 4, "middle", "differs-label",
             "no interval: no conclusion");
    return svg.Finish("Speed of B over A of each pair, without a conclusion", css);
  }
  svg.Text(kLeft - 8, middle + 4, "end", "tick", "95 %");
  if (bounded) {
    const double left = x(std::max(ratio.low, x.low)), right = x(std::min(ratio.high, x.high));
    svg.Rect(left, middle - 6, std::max(1.0, right - left), 12, "interval", ConclusionText(ratio));
  }
  svg.Line(x(ratio.estimate), middle - 10, x(ratio.estimate), middle + 10, "estimate");
  return svg.Finish("Speed of B over A: " + ConclusionText(ratio), css);
}

std::string LossPlot(const TrainResult& result, double width, const char* css) {
  constexpr double kHeight = 232;
  Svg svg(width, kHeight);
  Range range;
  size_t steps = 2;
  for (const RunResult& run : result.runs) {
    if (run.side == SideId::kNull) continue;
    steps = std::max(steps, run.losses.size());
    for (const double loss : run.losses) {
      if (std::isfinite(loss)) range.Add(loss);
    }
  }
  if (const auto target = result.request.target_loss) range.Add(*target);
  range = range.Padded();
  const Axis x{1, static_cast<double>(steps), kLeft, width - kRight};
  const Axis y{range.low, range.high, kHeight - kBottom, kTop};
  DrawYAxis(svg, y, kLeft, width - kRight);
  DrawXAxis(svg, x, kTop, kHeight - kBottom, "step; all runs of A (wide) and B (dashed)");
  for (const RunResult& run : result.runs) {
    if (run.side == SideId::kNull) continue;
    std::vector<std::pair<double, double>> points;
    const size_t stride = std::max<size_t>(1, run.losses.size() / kMaxPoints);
    for (size_t i = 0; i < run.losses.size(); i += stride) {
      if (!std::isfinite(run.losses[i])) continue;
      points.emplace_back(x(static_cast<double>(i) + 1), y(run.losses[i]));
    }
    svg.Path(points, Css(run.side, "curve").c_str());
  }
  if (const auto target = result.request.target_loss) {
    svg.Line(x.from, y(*target), x.to, y(*target), "one");
  }
  if (result.difference) {
    const double place = x(static_cast<double>(result.difference->step));
    svg.Line(place, kTop, place, kHeight - kBottom, "differs");
    const bool left_half = place < width / 2;
    svg.Text(place + (left_half ? 5 : -5), kTop + 12, left_half ? "start" : "end", "differs-label",
             "differs from step " + std::to_string(result.difference->step));
  }
  return svg.Finish("Losses of A and B over the steps", css);
}

}  // namespace engine::bench
