#include "bench/report/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/statistics/summary.h"
#include "bench/training/losses.h"
#include "tools/report/page_head.h"
#include "tools/report/svg.h"

namespace engine::bench {
namespace {

std::string LossFact(const TrainResult& result) {
  if (result.request.target_loss) return fmt::format("target: mean of {} steps", kLossWindow);
  if (result.difference) return "differ at step " + std::to_string(result.difference->step);
  double worst = 0;
  const RunResult* first = nullptr;
  for (const RunResult& run : result.runs) {
    if (run.side == SideId::kNull) continue;
    if (first == nullptr) first = &run;
    for (size_t i = 0; i < std::min(run.losses.size(), first->losses.size()); ++i) {
      const double scale = std::max(std::fabs(first->losses[i]), std::fabs(run.losses[i]));
      if (scale > 0) worst = std::max(worst, std::fabs(first->losses[i] - run.losses[i]) / scale);
    }
  }
  if (worst == 0) return "equal at every step of every run";
  return fmt::format("agree at every step of every run, within {:.1e}", worst);
}

}  // namespace

std::string Milliseconds(double seconds) {
  const double size = std::fabs(seconds);
  if (size < 1e-3) return fmt::format("{:.{}f} us", 1e6 * seconds, size < 1e-4 ? 1 : 0);
  return fmt::format("{:.{}f} ms", 1e3 * seconds, size < 1e-2 ? 2 : size < 1 ? 1 : 0);
}

std::string Percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

std::vector<SideId> SidesOf(const TrainResult& result) {
  std::vector<SideId> sides = {SideId::kA, SideId::kB};
  if (result.request.null_side) sides.push_back(SideId::kNull);
  return sides;
}

std::vector<Fact> EfficiencyFacts(const TrainResult& result) {
  const Conditions& conditions = result.conditions;
  std::vector<Fact> facts;
  if (conditions.compute_seconds) {
    facts.push_back({"computation F + B", Milliseconds(*conditions.compute_seconds)});
  }
  if (conditions.communication_seconds) {
    facts.push_back(
        {"communication C on the link", Milliseconds(*conditions.communication_seconds)});
  }
  if (conditions.ratio) {
    facts.push_back({"r = C / (F + B)", fmt::format("{:.2f}", *conditions.ratio)});
    facts.push_back({"bound without overlap", Milliseconds(*conditions.no_overlap)});
    facts.push_back(
        {"bound with overlap of the backward pass", Milliseconds(*conditions.backward_overlap)});
    facts.push_back({"bound with full overlap", Milliseconds(*conditions.full_overlap)});
  }
  for (const SideId side : {SideId::kA, SideId::kB}) {
    const double step = result.steps[static_cast<int>(side)].median;
    const std::string of = std::string(" of ") + Name(side);
    if (conditions.compute_seconds) {
      facts.push_back(
          {"exposed communication" + of, Milliseconds(step - *conditions.compute_seconds)});
    }
    if (conditions.full_overlap && step > 0) {
      facts.push_back({"schedule efficiency" + of, Percent(*conditions.full_overlap / step)});
    }
  }
  return facts;
}

std::vector<Fact> TargetFacts(const TrainResult& result) {
  std::vector<Fact> facts;
  if (!result.request.target_loss) return facts;
  for (const SideId side : {SideId::kA, SideId::kB}) {
    const Ratio& seconds = result.target_seconds[static_cast<int>(side)];
    std::vector<double> steps;
    for (const RunResult& run : result.runs) {
      if (run.side != side || !run.target_seconds) continue;
      steps.push_back(static_cast<double>(run.losses.size()));
    }
    std::string text = "not reached";
    if (!steps.empty()) {
      text = fmt::format("{:.2f} ({}), after {:.0f} steps (median)", seconds.estimate,
                         HasInterval(seconds) ? fmt::format("95 % interval {:.2f} to {:.2f}",
                                                            seconds.low, seconds.high)
                                              : "too few runs for an interval",
                         Median(steps));
    }
    facts.push_back(
        {fmt::format("seconds to a loss of {:g}, {}", *result.request.target_loss, Name(side)),
         text});
  }
  return facts;
}

std::vector<Fact> ConditionFacts(const TrainResult& result) {
  const TrainRequest& request = result.request;
  std::vector<Fact> facts = {
      {"configuration", request.config_name},
      {"A", Describe(request.a)},
      {"B", request.same ? "A again, as a control" : Describe(request.b)},
      {"ranks", std::to_string(request.ranks)},
      {"servers", request.servers == 0 ? "none of their own" : std::to_string(request.servers)},
      {"order of runs",
       fmt::format("{} x A B B A{}", request.blocks, request.null_side ? ", null after each" : "")},
      {"steps of each run",
       request.target_loss
           ? fmt::format("at most {}; each pair has a seed of its own", request.steps)
           : fmt::format("{} measured after {} to warm up", request.steps, request.warmup)},
      {"losses", LossFact(result)}};
  if (result.link) {
    facts.push_back(
        {"link of each rank and server", result.link->rate + ", " + result.link->congestion});
    facts.push_back({"discarded for dropped packets", std::to_string(result.discarded.size())});
  }
  int64_t bytes = 0;
  for (const RunResult& run : result.runs) bytes = std::max(bytes, run.bytes_per_step);
  if (bytes > 0) {
    facts.push_back({"bytes sent per step and rank",
                     fmt::format("{:.2f} MB in transfers", static_cast<double>(bytes) * 1e-6)});
  }
  return facts;
}

std::vector<Fact> MachineFacts(const Machine& machine) {
  return {{"processor", machine.cpu},
          {"cores", std::to_string(machine.cores)},
          {"memory", fmt::format("{:.0f} GiB", machine.memory_gib)},
          {"kernel", machine.kernel},
          {"congestion control", machine.congestion},
          {"load before", fmt::format("{:.2f}", machine.load)},
          {"engine", machine.engine},
          {"began", machine.time}};
}

std::string TextOf(const TextTable& table) {
  std::vector<size_t> widths;
  for (const report::Cells& row : table.rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text = "\n" + table.title + "\n";
  for (const report::Cells& row : table.rows) {
    text += fmt::format("{:{}}", row[0], widths[0]);
    for (size_t i = 1; i < row.size(); ++i) text += fmt::format("  {:>{}}", row[i], widths[i]);
    text += "\n";
  }
  return text;
}

report::Cells StepCells(const std::string& name, const std::vector<double>& seconds) {
  const Summary steps = Summarize(seconds);
  report::Cells cells = {name};
  for (const double one : {steps.median, steps.p10, steps.p90, steps.mean}) {
    cells.push_back(fmt::format("{:.3f}", 1e3 * one));
  }
  cells.push_back(std::to_string(seconds.size()));
  return cells;
}

TextTable StepTable(const TrainResult& result) {
  TextTable table{"Time of a step in ms", {kStepHead}};
  for (const SideId side : SidesOf(result)) {
    table.rows.push_back(StepCells(Name(side), StepsOf(result, side)));
  }
  return table;
}

std::string Page(const std::string& title, const char* mood, const std::string& headline,
                 const std::string& words, const std::string& body, const Machine& machine) {
  return fmt::format(
      "{}<body>\n<main>\n<h1>{}</h1>\n<section id=\"conclusion\" class=\"conclusion {}\">\n"
      "<div class=\"figure\">{}</div>\n<div class=\"words\">{}</div>\n</section>\n{}"
      "<div class=\"loose\">\n{}</div>\n<section>\n<h2>Command</h2>\n<pre>{}</pre>\n"
      "</section>\n</main>\n</body>\n</html>\n",
      report::PageHead(), report::Escape(title), mood, headline, report::Escape(words), body,
      report::FactTable("Machine", MachineFacts(machine)), report::Escape(machine.command_line));
}

}  // namespace engine::bench
