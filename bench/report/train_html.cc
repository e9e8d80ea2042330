// The page. It asks for nothing: no script, no font, no picture; its policy forbids them besides.

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

#include "bench/report/facts.h"
#include "bench/report/train_plots.h"
#include "bench/report/train_report.h"
#include "tools/report/page_head.h"
#include "tools/report/svg.h"

namespace engine::bench {
namespace {

using report::Escape;

// Of one drawing: beside another one on a wide page, and on a narrow page, where the text of the
// wide one would be too small.
constexpr double kWide = 540, kNarrow = 340;

std::string Headline(const TrainResult& result) {
  if (result.difference) return "no conclusion";
  if (Judge(result.ratio) == Conclusion::kNotSeparable) return "not separable";
  const bool slower = Judge(result.ratio) == Conclusion::kSlower;
  const double shown = slower ? 1 / result.ratio.estimate : result.ratio.estimate;
  return fmt::format("{:.{}f}\u00d7 {}", shown, std::fabs(shown - 1) < 0.095 ? 3 : 2,
                     slower ? "slower" : "faster");
}

const char* Mood(const TrainResult& result) {
  if (result.difference) return "refused";
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
  std::string html =
      "<section>\n<h2>Time of a step in ms</h2>\n<div class=\"scroll\"><table class=\"numbers\">\n"
      "<thead><tr><th></th><th>median</th><th>p10</th><th>p90</th><th>mean</th><th>steps</th>"
      "</tr></thead>\n";
  for (const SideId side : SidesOf(result)) {
    const Summary& steps = result.steps[static_cast<int>(side)];
    size_t count = 0;
    for (const RunResult& run : result.runs) {
      if (run.side == side) count += run.step_seconds.size();
    }
    html += fmt::format(
        "<tr><th>{}</th><td>{:.3f}</td><td>{:.3f}</td><td>{:.3f}</td><td>{:.3f}</td>"
        "<td>{}</td></tr>\n",
        Name(side), 1e3 * steps.median, 1e3 * steps.p10, 1e3 * steps.p90, 1e3 * steps.mean, count);
  }
  return html + "</table></div>\n</section>\n";
}

std::string FactsPart(const char* title, const std::vector<Fact>& facts) {
  if (facts.empty()) return "";
  std::string html = fmt::format("<section>\n<h2>{}</h2>\n<table class=\"facts\">\n", title);
  for (const Fact& fact : facts) {
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", Escape(fact.name), Escape(fact.value));
  }
  return html + "</table>\n</section>\n";
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
  html += FactsPart("Communication and computation", EfficiencyFacts(result));
  html += FactsPart("Conditions", ConditionFacts(result));
  html += FactsPart("Machine", MachineFacts(result.machine));
  html += "</div>\n<section>\n<h2>Command</h2>\n<pre>" + Escape(result.machine.command_line) +
          "</pre>\n</section>\n";
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace engine::bench
