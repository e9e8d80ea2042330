// The page. It asks for nothing: no script, no font, no picture; its policy forbids them besides.

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "bench/report/facts.h"
#include "bench/report/train_plots.h"
#include "bench/report/train_report.h"
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

std::string SidesPart(const TrainResult& result) {
  std::string html = "<div class=\"sides\">\n";
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

}  // namespace

std::string TrainHtml(const TrainResult& result) {
  std::string html = SidesPart(result) + "<div class=\"grid\">\n";
  html += Figure(result, "steps", "Step times", StepTimePlot);
  html += Figure(result, "ratio", "Speed of B over A", RatioPlot);
  html += Figure(result, "order", "Runs in their order", RunOrderPlot);
  html += Figure(result, "losses", "Losses", LossPlot);
  const TextTable steps = StepTable(result);
  html += "</div>\n" + report::Table(steps.title, steps.rows) + "<div class=\"loose\">\n" +
          FactTable("Time to a loss", TargetFacts(result)) +
          FactTable("Communication and computation", EfficiencyFacts(result)) +
          FactTable("Conditions", ConditionFacts(result)) + "</div>\n";
  return Page("engine bench train: " + result.request.config_name, Mood(result), Headline(result),
              Rest(result), html, result.machine);
}

}  // namespace engine::bench
