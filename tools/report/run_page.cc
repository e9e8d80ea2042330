#include "tools/report/run_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "tools/report/page_head.h"
#include "tools/report/page_parts.h"
#include "tools/report/svg.h"

namespace engine::report {
namespace {

using Json = nlohmann::json;

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
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr PlotAxes kFromZero{.from_zero = true};

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
  return CurveFigure(title, curves);
}

using Facts = std::vector<std::pair<std::string, std::string>>;

std::string Figures(const RunLog& log) {
  Facts facts;
  facts.emplace_back("steps",
                     fmt::format("{}{}", log.steps,
                                 log.resumed > 0 ? fmt::format(", resumed {} times", log.resumed)
                                                 : std::string()));
  const auto last = [&](const char* words, const std::map<std::string, Series>& all,
                        const char* name) {
    const Series& series = Of(all, name);
    if (series.empty()) return;
    facts.emplace_back(
        words, fmt::format("{:.6g} (step {:.0f})", series.back().second, series.back().first));
  };
  last("loss of the last step", log.of_steps, "loss");
  last("last held-out loss", log.of_evaluations, "loss");
  const Series& held_out = Of(log.of_evaluations, "loss");
  const auto best = std::min_element(
      held_out.begin(), held_out.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  if (best != held_out.end()) {
    facts.emplace_back("best held-out loss",
                       fmt::format("{:.6g} (step {:.0f})", best->second, best->first));
  }
  last("last held-out accuracy", log.of_evaluations, "accuracy");
  facts.emplace_back("median step",
                     fmt::format("{:.4g} ms", 1e3 * Median(Of(log.of_steps, "seconds"))));
  facts.emplace_back(
      "median throughput",
      fmt::format("{:.4g} samples/s", Median(Of(log.of_steps, "samples_per_second"))));
  const Series& seconds = Of(log.of_steps, "seconds");
  facts.emplace_back("time of all steps",
                     fmt::format("{:.4g} s", std::accumulate(seconds.begin(), seconds.end(), 0.0,
                                                             [](double sum, const auto& point) {
                                                               return sum + point.second;
                                                             })));
  return FactTable("Figures", facts);
}

std::string Checkpoints(const RunLog& log) {
  Facts facts;
  for (const auto& [step, path] : log.checkpoints) {
    facts.emplace_back(fmt::format("step {}", step), path);
  }
  return FactTable("Checkpoints", facts);
}

std::string NameOf(const Json& classes, size_t number) {
  const bool named = number < classes.size() && classes[number].contains("name");
  return named ? classes[number]["name"].get<std::string>() : std::to_string(number);
}

std::string Classes(const Json& classes) {
  std::vector<Cells> rows = {{"class", "targets", "predicted", "precision", "recall"}};
  for (size_t i = 0; i < classes.size(); ++i) {
    Cells& row = rows.emplace_back(Cells{NameOf(classes, i)});
    for (const char* key : {"targets", "predicted", "precision", "recall"}) {
      row.push_back(fmt::format("{:.4g}", classes[i].value(key, 0.0)));
    }
  }
  return Table("Classes", rows);
}

// Which classes are taken for which, the most frequent first.
std::string Mistakes(const Json& classes, const Json& confusion) {
  constexpr size_t kMost = 20;
  std::vector<std::tuple<double, size_t, size_t>> pairs;
  for (size_t row = 0; row < confusion.size(); ++row) {
    for (size_t column = 0; column < confusion[row].size(); ++column) {
      const double count = confusion[row][column];
      if (row != column && count > 0) pairs.emplace_back(-count, row, column);
    }
  }
  std::ranges::sort(pairs);
  if (pairs.size() > kMost) pairs.resize(kMost);
  std::vector<Cells> rows = {{"samples", "class", "taken for"}};
  for (const auto& [count, is, taken] : pairs) {
    rows.push_back({fmt::format("{:g}", -count), NameOf(classes, is), NameOf(classes, taken)});
  }
  return Table("Mistakes", rows);
}

// Samples that were taken for another class, the surest first.
std::string Samples(const Json& classes, const Json& mistakes) {
  if (mistakes.empty()) return "";
  std::string html = "<section>\n<h2>Samples of mistakes</h2>\n<div class=\"mistakes\">\n";
  for (const Json& one : mistakes) {
    const std::string image = one.at("image");
    html += "<figure>";
    if (!image.empty()) html += fmt::format("<img alt=\"\" src=\"{}\">", Escape(image));
    html += fmt::format("<figcaption>{} taken for {}<br>sample {}</figcaption></figure>\n",
                        Escape(NameOf(classes, one.at("class"))),
                        Escape(NameOf(classes, one.at("predicted"))), one.at("sample").dump());
  }
  return html + "</div>\n</section>\n";
}

std::string Curves(const RunLog& log) {
  std::string html =
      Compared("Loss", log, "loss") + Compared("Accuracy in %", log, "accuracy", 100);
  html += CurveFigure("Learning rate", {{"", "a plain", false, Of(log.of_steps, "learning_rate")}});
  html += CurveFigure("Samples per second", WithMean(Of(log.of_steps, "samples_per_second")),
                      kFromZero);
  html += CurveFigure("Exposed communication in % of a step", WithMean(Of(log.of_steps, "exposed")),
                      kFromZero);
  const Series memory = Scaled(Of(log.of_steps, "peak_memory_bytes"), 1.0 / (1 << 20));
  html += CurveFigure("Peak memory of rank 0 in MiB", {{"", "a plain", false, memory}}, kFromZero);
  for (const auto& [name, series] : log.of_plugins) html += CurveFigure(name, WithMean(series));
  return html;
}

}  // namespace

Result<std::string> RunPage(const RunLog& log, const std::string& title,
                            const std::string& evaluation) {
  const Json found = evaluation.empty() ? Json::object() : Json::parse(evaluation, nullptr, false);
  if (!found.is_object() || found.contains("loss") == evaluation.empty()) {
    return Status::Error(StatusCode::kBadData,
                         "the evaluation is not what `engine eval --json` prints");
  }
  std::string html = std::string(PageHead()) +
                     "<body>\n<main>\n<h1>engine report: " + Escape(title) +
                     "</h1>\n<div class=\"grid\">\n" + Curves(log) +
                     "</div>\n<div class=\"loose\">\n" + Figures(log) + Checkpoints(log);
  try {
    const Json classes = found.value("classes", Json::array());
    html += Classes(classes) + Mistakes(classes, found.value("confusion", Json::array())) +
            Samples(classes, found.value("mistakes", Json::array()));
  } catch (const Json::exception& error) {
    return Status::Error(StatusCode::kBadData, "the evaluation is damaged: %s", error.what());
  }
  return html + "</div>\n</main>\n</body>\n</html>\n";
}

}  // namespace engine::report
