// The page. It asks for nothing: no script, no font, no picture; its policy forbids them besides.

#include <cmath>
#include <cstdio>

#include "bench/report/facts.h"
#include "bench/report/svg.h"
#include "bench/report/train_plots.h"
#include "bench/report/train_report.h"

namespace engine::bench {
namespace {

// Of one drawing: beside another one on a wide page, and on a narrow page, where the text of the
// wide one would be too small.
constexpr double kWide = 540, kNarrow = 340;

constexpr const char* kHead = R"html(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>engine bench</title>
<style>
)html";

constexpr const char* kStyle = R"css(
:root {
  --page: #f5f6f8; --card: #ffffff; --ink: #1b2330; --soft: #5b6675; --line: #dfe3e9;
  --a: #0068a8; --b: #c75000; --n: #7a828e; --good: #0b7a4b; --bad: #b3261e; --band: #f0f2f5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151b; --card: #1a2029; --ink: #e6eaf0; --soft: #9aa5b3; --line: #303947;
    --a: #5cb4f0; --b: #f0a04b; --n: #8f99a6; --good: #4cc38a; --bad: #ff8a80; --band: #222a35;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 15px; font-weight: 600; color: var(--soft); margin: 0 0 14px; }
h2 { font-size: 15px; font-weight: 600; margin: 0 0 10px; }
section, figure { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
                  padding: 18px 20px; margin: 0; min-width: 0; }
.verdict { display: flex; gap: 8px 28px; align-items: center; flex-wrap: wrap; }
.figure { font-size: 40px; line-height: 1.1; font-weight: 700; letter-spacing: -0.02em;
          font-variant-numeric: tabular-nums; }
.faster .figure { color: var(--good); }
.slower .figure, .refused .figure { color: var(--bad); }
.words { flex: 1 1 320px; font-size: 18px; overflow-wrap: anywhere; }
.sides { display: flex; flex-wrap: wrap; gap: 6px 24px; margin: 16px 0 22px; color: var(--soft); }
.sides b { color: var(--ink); font-weight: 600; overflow-wrap: anywhere; }
.chip { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 7px;
        vertical-align: -1px; }
.chip.a { background: var(--a); } .chip.b { background: var(--b); } .chip.n { background: var(--n); }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr));
        gap: 16px; margin-bottom: 16px; }
.loose { columns: 2 460px; column-gap: 16px; margin: 16px 0; }
.loose section { break-inside: avoid; margin-bottom: 16px; }
.scroll { overflow-x: auto; }
figcaption { font-weight: 600; margin-bottom: 8px; }
svg { display: block; width: 100%; height: auto; }
svg.narrow { display: none; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { text-align: left; padding: 5px 14px 5px 0; border-top: 1px solid var(--line);
         vertical-align: top; font-weight: 400; }
tr:first-child > * { border-top: 0; }
.facts th { color: var(--soft); width: 42%; }
.facts td { overflow-wrap: anywhere; }
.numbers th, .numbers td { text-align: right; white-space: nowrap; }
.numbers th:first-child { text-align: left; }
.numbers thead th { color: var(--soft); }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
      font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
text { font-size: 12px; fill: var(--soft); }
.axis { fill: var(--soft); }
.name { font-size: 15px; font-weight: 700; }
.letter { font-weight: 600; }
text.a { fill: var(--a); } text.b { fill: var(--b); } text.n { fill: var(--n); }
.rule { stroke: var(--line); stroke-width: 1; }
.dot { fill-opacity: 0.38; }
circle.a, rect.a { fill: var(--a); } circle.b, rect.b { fill: var(--b); }
circle.n, rect.n { fill: var(--n); }
line.a, path.a { stroke: var(--a); } line.b, path.b { stroke: var(--b); }
line.n, path.n { stroke: var(--n); }
.stroke { stroke-width: 1.6; }
.box { fill-opacity: 0.3; }
.median { stroke-width: 2.6; }
.curve { fill: none; stroke-width: 1.6; stroke-dasharray: 6 4; }
path.a.curve { stroke-width: 5; stroke-opacity: 0.16; stroke-dasharray: none; }
.band { fill: var(--band); }
.pair { fill: var(--ink); fill-opacity: 0.55; }
.one { stroke: var(--soft); stroke-width: 1.4; stroke-dasharray: 4 3; }
.interval { fill: var(--good); fill-opacity: 0.35; }
.estimate { stroke: var(--good); stroke-width: 2.6; }
.differs { stroke: var(--bad); stroke-width: 1.6; }
.differs-label { fill: var(--bad); font-weight: 600; }
@media (max-width: 620px) {
  main { padding: 16px 10px 32px; }
  section, figure { padding: 14px 12px; }
  .figure { font-size: 34px; }
  .words { font-size: 16px; }
  .numbers { font-size: 13px; }
  .numbers th, .numbers td { padding-right: 8px; }
  svg.wide { display: none; }
  svg.narrow { display: block; }
}
)css";

std::string Headline(const TrainResult& result) {
  if (result.difference) return "no verdict";
  char text[32];
  const double estimate = result.ratio.estimate;
  const bool slower = Judge(result.ratio) == Verdict::kSlower;
  const double shown = slower ? 1 / estimate : estimate;
  std::snprintf(text, sizeof(text), std::fabs(shown - 1) < 0.095 ? "%.3f\u00d7" : "%.2f\u00d7",
                shown);
  constexpr const char* kWords[] = {" faster", " slower"};
  if (Judge(result.ratio) == Verdict::kNotSeparable) return "not separable";
  return std::string(text) + kWords[slower ? 1 : 0];
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

std::string VerdictPart(const TrainResult& result) {
  std::string html = std::string("<section id=\"verdict\" class=\"verdict ") + Mood(result) +
                     "\">\n<div class=\"figure\">" + Headline(result) +
                     "</div>\n<div class=\"words\">" + Escape(Rest(result)) +
                     "</div>\n</section>\n<div class=\"sides\">\n";
  constexpr const char* kChips[] = {"a", "b", "n"};
  for (const SideId side : SidesOf(result)) {
    const bool again = side == SideId::kB && result.request.same;
    html += std::string("<span><i class=\"chip ") + kChips[static_cast<int>(side)] + "\"></i>" +
            Name(side) + "&ensp;<b>" + Escape(again ? "A again" : Describe(SideOf(result, side))) +
            "</b></span>\n";
  }
  return html + "</div>\n";
}

using Plot = std::string (*)(const TrainResult&, double width, const char* css);

std::string Figure(const TrainResult& result, const char* id, const char* title, Plot plot) {
  return std::string("<figure id=\"") + id + "\">\n<figcaption>" + title + "</figcaption>\n" +
         plot(result, kWide, "wide") + plot(result, kNarrow, "narrow") + "</figure>\n";
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
    char row[256];
    std::snprintf(row, sizeof(row),
                  "<tr><th>%s</th><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td>"
                  "<td>%zu</td></tr>\n",
                  Name(side), 1e3 * steps.median, 1e3 * steps.p10, 1e3 * steps.p90,
                  1e3 * steps.mean, count);
    html += row;
  }
  return html + "</table></div>\n</section>\n";
}

std::string FactsPart(const char* title, const std::vector<Fact>& facts) {
  if (facts.empty()) return "";
  std::string html = std::string("<section>\n<h2>") + title + "</h2>\n<table class=\"facts\">\n";
  for (const Fact& fact : facts) {
    html += "<tr><th>" + Escape(fact.name) + "</th><td>" + Escape(fact.value) + "</td></tr>\n";
  }
  return html + "</table>\n</section>\n";
}

}  // namespace

std::string TrainHtml(const TrainResult& result) {
  std::string html = std::string(kHead) + kStyle +
                     "</style>\n</head>\n<body>\n<main>\n<h1>engine bench train: " +
                     Escape(result.request.config_name) + "</h1>\n";
  html += VerdictPart(result);
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
