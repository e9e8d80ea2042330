// What was found, as tables that the terminal and the page share.

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "bench/cluster/cluster.h"
#include "bench/report/facts.h"
#include "tools/report/page_parts.h"
#include "tools/report/svg.h"

namespace engine::bench {
namespace {

using report::Cells;

std::string TimeText(const Summary& us, bool spread) {
  if (us.median <= 0) return "-";
  const auto number = [](double value) {
    return fmt::format("{:.{}f}", value, value < 1000 ? 1 : 0);
  };
  if (!spread) return number(us.median);
  return number(us.median) + " (" + number(us.p10) + " to " + number(us.p90) + ")";
}

std::string HostsText(const std::vector<int>& hosts) {
  std::map<int, int> ranks;
  for (const int host : hosts) ++ranks[host];
  std::string counts;
  for (const auto& [host, count] : ranks) {
    counts += (counts.empty() ? "" : " + ") + std::to_string(count);
  }
  return ranks.size() == 1 ? "one host" : fmt::format("{} hosts ({})", ranks.size(), counts);
}

std::vector<TextTable> PairTables(const ClusterResult& result, bool spread) {
  std::vector<TextTable> tables;
  for (const PairClass& pair : result.pairs) {
    TextTable& table = tables.emplace_back();
    table.title = fmt::format("Two ranks, {} (0 and {}): all-reduce of {} in us, of {} in GB/s",
                              pair.name, pair.other, SizeText(kSmallBytes), SizeText(kLargeBytes));
    table.rows.push_back({"", "latency", "bandwidth"});
    const auto& [request, found] = pair.sweep;
    for (size_t i = 0; i < request.contenders.size() && found.rows.size() == 2; ++i) {
      const Summary &small = found.rows[0].timings[kInPlace][i].us,
                    &large = found.rows[1].timings[kInPlace][i].us;
      if (small.median <= 0) continue;  // it is among those left out
      const auto rate = [&](double us) { return fmt::format("{:.3f}", kLargeBytes / us * 1e-3); };
      table.rows.push_back({request.contenders[i].label, TimeText(small, spread),
                            large.median <= 0 ? "-"
                            : !spread         ? rate(large.median)
                                      : rate(large.median) + " (" + rate(large.p90) + " to " +
                                            rate(large.p10) + ")"});
    }
  }
  return tables;
}

TextTable SweepTable(const ClusterSweep& sweep, bool spread) {
  const std::vector<std::string> names = NamesOf(sweep.request.contenders);
  TextTable table{
      fmt::format("{} of {} in us", Name(sweep.request.kind), Name(sweep.request.dtype)),
      {{"size"}}};
  table.rows[0].insert(table.rows[0].end(), names.begin(), names.end());
  table.rows[0].emplace_back("wins");
  for (const SweepRow& row : sweep.result.rows) {
    Cells& cells = table.rows.emplace_back(Cells{SizeText(row.bytes)});
    for (const Timing& timing : row.timings[kInPlace]) {
      cells.push_back(timing.wrong > 0 ? "wrong" : TimeText(timing.us, spread));
    }
    cells.push_back(WinnerText(WinnerOf(row, sweep.request.seed), names));
  }
  return table;
}

// By size, a column for each operation of the first dtype.
TextTable WinnerTable(const ClusterResult& result) {
  TextTable table{"Who wins where", {{"size"}}};
  std::map<int64_t, Cells> by_size;
  for (const ClusterSweep& sweep : result.sweeps) {
    if (sweep.request.dtype != result.sweeps[0].request.dtype) continue;
    table.rows[0].emplace_back(Name(sweep.request.kind));
    for (const SweepRow& row : sweep.result.rows) {
      Cells& cells = by_size.try_emplace(row.bytes, Cells{SizeText(row.bytes)}).first->second;
      cells.resize(table.rows[0].size() - 1);  // operations before it that lack this size
      cells.push_back(
          WinnerText(WinnerOf(row, sweep.request.seed), NamesOf(sweep.request.contenders)));
    }
  }
  for (auto& [bytes, cells] : by_size) {
    cells.resize(table.rows[0].size());
    table.rows.push_back(cells);
  }
  return table;
}

TextTable RaceTable(const std::string& title, const std::vector<SideSteps>& sides) {
  TextTable table{"Training, " + title + ": ms of a step", {kStepHead}};
  table.rows[0].emplace_back("over the first");
  for (const SideSteps& side : sides) {
    if (!side.failure.ok()) continue;
    std::vector<double> all;
    for (const auto& turn : side.seconds) all.insert(all.end(), turn.begin(), turn.end());
    Cells& cells = table.rows.emplace_back(StepCells(side.name, all));
    const Ratio ratio = Compare(sides[0].seconds, side.seconds, 1);
    cells.push_back(&side == &sides[0]    ? "-"
                    : !HasInterval(ratio) ? "too few pairs"
                                          : fmt::format("{:.2f}x ({:.2f} to {:.2f})",
                                                        ratio.estimate, ratio.low, ratio.high));
  }
  return table;
}

// All but those of the sweeps.
std::vector<TextTable> Summaries(const ClusterResult& result, bool spread) {
  std::vector<TextTable> tables = PairTables(result, spread);
  tables.push_back(WinnerTable(result));
  for (const auto& [title, sides] : result.races) tables.push_back(RaceTable(title, sides));
  return tables;
}

// Median and spread of each contender over sizes, both axes logarithmic.
std::string SweepFigure(const ClusterSweep& sweep) {
  constexpr const char* kCurves[][2] = {{"a plain", "a faint"}, {"b plain", "b faint"},
                                        {"n plain", "n faint"}, {"c plain", "c faint"},
                                        {"d plain", "d faint"}, {"e plain", "e faint"}};
  std::vector<report::Curve> curves;
  for (size_t i = 0; i < sweep.request.contenders.size(); ++i) {
    const auto& [plain, faint] = kCurves[i % std::size(kCurves)];
    report::Curve median{sweep.request.contenders[i].label, plain}, low{"", faint}, high{"", faint};
    for (const SweepRow& row : sweep.result.rows) {
      const Summary& us = row.timings[kInPlace][i].us;
      if (us.median <= 0) continue;
      const double x = std::log2(static_cast<double>(row.bytes));
      median.points.emplace_back(x, std::log10(us.median));
      low.points.emplace_back(x, std::log10(us.p10));
      high.points.emplace_back(x, std::log10(us.p90));
    }
    curves.insert(curves.end(), {median, low, high});
  }
  // Ticks lie between powers where there are few of them.
  const auto size = [](double x) {
    return x == std::floor(x) ? SizeText(static_cast<int64_t>(std::exp2(x))) : std::string();
  };
  const auto us = [](double y) { return fmt::format("{:.{}f}", std::pow(10, y), y < 1 ? 1 : 0); };
  return report::CurveFigure(
      fmt::format("{} of {}, us", Name(sweep.request.kind), Name(sweep.request.dtype)), curves,
      {.x = "size", .x_words = size, .y_words = us});
}

std::string Headline(const ClusterResult& result) {
  return result.fragment.empty() ? "keep the defaults"
                                 : fmt::format("{:.2f}\u00d7 faster", result.gain.estimate);
}

}  // namespace

std::string ClusterText(const ClusterResult& result, const SweepConditions& conditions) {
  std::string text =
      fmt::format("{} ranks ({}) on {}, {} cores, {}\n", conditions.ranks, conditions.source,
                  HostsText(result.hosts), conditions.machine.cores, conditions.machine.cpu);
  for (const auto& [name, why] : result.left_out) text += "left out: " + name + ": " + why + "\n";
  for (const ClusterSweep& sweep : result.sweeps) text += TextOf(SweepTable(sweep, false));
  for (const TextTable& table : Summaries(result, /*spread=*/false)) text += TextOf(table);
  text += "\nTimes are medians of the slowest rank; ~: not separable with 95 % confidence.\n";
  if (!result.fragment.empty()) text += "\n" + result.fragment;
  return text + "\n" + result.sentence + "\n";
}

std::string ClusterHtml(const ClusterResult& result, const SweepConditions& conditions) {
  std::string html = "<div class=\"sides\"></div>\n";
  if (!result.fragment.empty()) {
    html += "<section id=\"fragment\">\n<h2>Configuration</h2>\n<pre>" +
            report::Escape(result.fragment) + "</pre>\n</section>\n<div class=\"sides\"></div>\n";
  }
  html += "<div class=\"grid\">\n";
  for (const ClusterSweep& sweep : result.sweeps) html += SweepFigure(sweep);
  html += "</div>\n<div class=\"loose\">\n";
  for (const TextTable& table : Summaries(result, /*spread=*/true)) {
    html += report::Table(table.title, table.rows);
  }
  html += report::FactTable("Left out", result.left_out) + "</div>\n<div class=\"rows\">\n";
  for (const ClusterSweep& sweep : result.sweeps) {
    const TextTable table = SweepTable(sweep, /*spread=*/true);
    html += report::Table(table.title + ": median (p10 to p90)", table.rows);
  }
  return Page(fmt::format("engine bench cluster: {} ranks on {}", conditions.ranks,
                          HostsText(result.hosts)),
              result.fragment.empty() ? "even" : "faster", Headline(result), result.sentence,
              html + "</div>\n", conditions.machine);
}

}  // namespace engine::bench
