// The page. It asks for nothing: no script, no font, no picture; its policy forbids them besides.

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "bench/report/facts.h"
#include "bench/report/train_plots.h"
#include "bench/report/train_report.h"
#include "tools/report/page_head.h"
#include "tools/report/page_parts.h"
#include "tools/report/svg.h"

namespace engine::bench {
namespace {

using report::Escape, report::FactTable, report::kNarrow, report::kWide;

std::string Headline(const TrainResult& result) {
  if (result.refused) return "no conclusion";
  if (Judge(result.ratio) == Conclusion::kNotSeparable) return "not separable";
  const bool slower = Judge(result.ratio) == Conclusion::kSlower;
  const double shown = slower ? 1 / result.ratio.estimate : result.ratio.estimate;
  return fmt::format("{:.{}f}\u00d7 {}", shown, std::fabs(shown - 1) < 0.095 ? 3 : 2,
                     slower ? "slower" : "faster");
}

const char* Mood(const TrainResult& result) {
  if (result.refused) return "refused";
  constexpr const char* kMoods[] = {"faster", "slower", "even"};
  return kMoods[static_cast<int>(Judge(result.ratio))];
}

// The sentence without the words that stand large beside it.
std::string Rest(const TrainResult& result) {
  const std::string prefix = Headline(result) + ": ";
  return result.sentence.starts_with(prefix) ? result.sentence.substr(prefix.size())
                                             : result.sentence;
}

std::string ConclusionPart(const TrainResult& result) {
  std::string html = fmt::format(
      "<section id=\"conclusion\" class=\"conclusion {}\">\n<div class=\"figure\">{}</div>\n"
      "<div class=\"words\">{}</div>\n</section>\n<div class=\"sides\">\n",
      Mood(result), Headline(result), Escape(Rest(result)));
  constexpr const char* kChips[] = {"a", "b", "n"};
  for (const SideId side : SidesOf(result)) {
    const bool again = side == SideId::kB && result.request.same;
    html += fmt::format("<span><i class=\"chip {}\"></i>{}&ensp;<b>{}</b></span>\n",
                        kChips[static_cast<int>(side)], Name(side),
                        Escape(again ? "A again" : Describe(result.request.side(side))));
  }
  return html + "</div>\n";
}

using Plot = std::string (*)(const TrainResult&, double width, const char* css);

std::string Figure(const TrainResult& result, const char* id, const char* title, Plot plot) {
  return fmt::format("<figure id=\"{}\">\n<figcaption>{}</figcaption>\n{}{}</figure>\n", id, title,
                     plot(result, kWide, "wide"), plot(result, kNarrow, "narrow"));
}

std::string NumbersPart(const TrainResult& result) {
  std::vector<report::Cells> rows = {{"", "median", "p10", "p90", "mean", "steps"}};
  for (const SideId side : SidesOf(result)) {
    const Summary& steps = result.steps[static_cast<int>(side)];
    size_t count = 0;
    for (const RunResult& run : result.runs) {
      if (run.side == side) count += run.step_seconds.size();
    }
    report::Cells& row = rows.emplace_back(report::Cells{Name(side)});
    for (const double seconds : {steps.median, steps.p10, steps.p90, steps.mean}) {
      row.push_back(fmt::format("{:.3f}", 1e3 * seconds));
    }
    row.push_back(std::to_string(count));
  }
  return report::Table("Time of a step in ms", rows);
}

}  // namespace

std::string TrainHtml(const TrainResult& result) {
  std::string html = std::string(report::PageHead()) + "<body>\n<main>\n<h1>engine bench train: " +
                     Escape(result.request.config_name) + "</h1>\n";
  html += ConclusionPart(result);
  html += "<div class=\"grid\">\n";
  html += Figure(result, "steps", "Step times", StepTimePlot);
  html += Figure(result, "ratio", "Speed of B over A", RatioPlot);
  html += Figure(result, "order", "Runs in their order", RunOrderPlot);
  html += Figure(result, "losses", "Losses", LossPlot);
  html += "</div>\n" + NumbersPart(result) + "<div class=\"loose\">\n";
  html += FactTable("Time to a loss", TargetFacts(result));
  html += FactTable("Communication and computation", EfficiencyFacts(result));
  html += FactTable("Conditions", ConditionFacts(result));
  html += FactTable("Machine", MachineFacts(result.machine));
  html += "</div>\n<section>\n<h2>Command</h2>\n<pre>" + Escape(result.machine.command_line) +
          "</pre>\n</section>\n";
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace engine::bench
