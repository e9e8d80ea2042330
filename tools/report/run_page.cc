#include "tools/report/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tools/report/page_head.h"
#include "tools/report/plot.h"
#include "tools/report/svg.h"

namespace engine::report {
namespace {

// Of one drawing: beside another one on a wide page, and on a narrow page, where the text of the
// wide one would be too small.
constexpr double kWide = 540, kNarrow = 340;

const Series& Of(const std::map<std::string, Series>& all, const std::string& name) {
  static const Series kNone;
  const auto found = all.find(name);
  return found == all.end() ? kNone : found->second;
}

Series Scaled(Series series, double factor) {
  for (auto& [step, value] : series) value *= factor;
  return series;
}

// Means over windows of a fiftieth of the run, which overlap.
Series Smoothed(const Series& series) {
  const size_t half = std::max<size_t>(1, series.size() / 100);
  Series smooth;
  for (size_t i = 0; i < series.size(); ++i) {
    const size_t begin = i < half ? 0 : i - half, end = std::min(series.size(), i + half + 1);
    double sum = 0;
    for (size_t j = begin; j < end; ++j) sum += series[j].second;
    smooth.emplace_back(series[i].first, sum / static_cast<double>(end - begin));
  }
  return smooth;
}

double Median(const Series& series) {
  std::vector<double> values;
  for (const auto& [step, value] : series) values.push_back(value);
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

enum class Scale { kFitted, kFromZero };

// What is shown by one curve alone needs no key.
std::string Figure(const std::string& title, std::vector<Curve> curves,
                   Scale scale = Scale::kFitted) {
  std::erase_if(curves, [](const Curve& curve) { return curve.points.empty(); });
  if (curves.empty()) return "";
  std::string keys;
  const auto colour = [](const Curve& curve) { return curve.css[0]; };
  if (colour(curves.front()) != colour(curves.back())) {
    for (const Curve& curve : curves) {
      if (curve.name.empty()) continue;
      keys += fmt::format("&emsp;<i class=\"chip {}\"></i>{}", colour(curve), Escape(curve.name));
    }
  }
  const auto plot = [&](double width, const char* css) {
    return CurvePlot(curves, scale == Scale::kFromZero, title + " over the steps", width, css);
  };
  return fmt::format("<figure>\n<figcaption>{}{}</figcaption>\n{}{}</figure>\n", Escape(title),
                     keys, plot(kWide, "wide"), plot(kNarrow, "narrow"));
}

// A series, thin, and its mean, thick.
std::vector<Curve> WithMean(const Series& series) {
  return {{"", "a faint", false, series}, {"training", "a plain", false, Smoothed(series)}};
}

// The same of steps, and what evaluations found.
std::string Compared(const std::string& title, const RunLog& log, const std::string& name,
                     double factor = 1) {
  std::vector<Curve> curves = WithMean(Scaled(Of(log.of_steps, name), factor));
  const Series held_out = Scaled(Of(log.of_evaluations, name), factor);
  curves.push_back({"held out", "b plain", false, held_out});
  curves.push_back({"", "b", true, held_out});
  return Figure(title, curves);
}

std::string Row(const std::string& name, const std::string& value) {
  return fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", Escape(name), Escape(value));
}

std::string Figures(const RunLog& log) {
  std::string html = "<section>\n<h2>Figures</h2>\n<table class=\"facts\">\n";
  html += Row("steps", fmt::format("{}{}", log.steps,
                                   log.resumed > 0 ? fmt::format(", resumed {} times", log.resumed)
                                                   : std::string()));
  const auto last = [&](const char* words, const std::map<std::string, Series>& all,
                        const char* name) {
    const Series& series = Of(all, name);
    if (series.empty()) return;
    html +=
        Row(words, fmt::format("{:.6g} (step {:.0f})", series.back().second, series.back().first));
  };
  last("loss of the last step", log.of_steps, "loss");
  last("last held-out loss", log.of_evaluations, "loss");
  const Series& held_out = Of(log.of_evaluations, "loss");
  const auto best = std::min_element(
      held_out.begin(), held_out.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  if (best != held_out.end()) {
    html +=
        Row("best held-out loss", fmt::format("{:.6g} (step {:.0f})", best->second, best->first));
  }
  last("last held-out accuracy", log.of_evaluations, "accuracy");
  html += Row("median step", fmt::format("{:.4g} ms", 1e3 * Median(Of(log.of_steps, "seconds"))));
  html += Row("median throughput",
              fmt::format("{:.4g} samples/s", Median(Of(log.of_steps, "samples_per_second"))));
  const Series& seconds = Of(log.of_steps, "seconds");
  html += Row("time of all steps",
              fmt::format("{:.4g} s", std::accumulate(seconds.begin(), seconds.end(), 0.0,
                                                      [](double sum, const auto& point) {
                                                        return sum + point.second;
                                                      })));
  return html + "</table>\n</section>\n";
}

std::string Checkpoints(const RunLog& log) {
  if (log.checkpoints.empty()) return "";
  std::string html = "<section>\n<h2>Checkpoints</h2>\n<table class=\"facts\">\n";
  for (const auto& [step, path] : log.checkpoints) html += Row(fmt::format("step {}", step), path);
  return html + "</table>\n</section>\n";
}

}  // namespace

std::string RunPage(const RunLog& log, const std::string& title) {
  std::string html = std::string(PageHead()) +
                     "<body>\n<main>\n<h1>engine report: " + Escape(title) +
                     "</h1>\n<div class=\"grid\">\n";
  html += Compared("Loss", log, "loss") + Compared("Accuracy in %", log, "accuracy", 100);
  html += Figure("Learning rate", {{"", "a plain", false, Of(log.of_steps, "learning_rate")}});
  html += Figure("Samples per second", WithMean(Of(log.of_steps, "samples_per_second")),
                 Scale::kFromZero);
  html += Figure("Exposed communication in % of a step", WithMean(Of(log.of_steps, "exposed")),
                 Scale::kFromZero);
  const Series memory = Scaled(Of(log.of_steps, "memory_bytes"), 1.0 / (1 << 20));
  html += Figure("Memory of rank 0 in MiB", {{"", "a plain", false, memory}}, Scale::kFromZero);
  for (const auto& [name, series] : log.of_plugins) html += Figure(name, WithMean(series));
  html += "</div>\n<div class=\"loose\">\n" + Figures(log) + Checkpoints(log) + "</div>\n";
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace engine::report
