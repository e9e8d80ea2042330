#include "tools/trace/command.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "app/command/amount.h"
#include "app/launch/log.h"
#include "tools/trace/summary.h"
#include "tools/trace/trace_format.h"

namespace engine::trace {
namespace {

struct TraceFlags {
  std::string file;
  std::string bandwidth;
  std::string steps;
  bool json = false;
};

// "375mbit", "45 MB/s": bytes per second.
Result<double> ParseBandwidth(std::string text) {
  std::erase(text, ' ');
  return command::ParseAmount("--bandwidth", text,
                              {{"bit", 1.0 / 8},
                               {"kbit", 1e3 / 8},
                               {"mbit", 1e6 / 8},
                               {"gbit", 1e9 / 8},
                               {"b/s", 1},
                               {"kb/s", 1e3},
                               {"mb/s", 1e6},
                               {"gb/s", 1e9}},
                              1e-9, 1e18,
                              "bandwidth; write 375mbit or 45MB/s (units: bit, kbit, mbit, gbit, "
                              "kB/s, MB/s, GB/s)");
}

// "A..B" or "A".
Result<StepRange> ParseSteps(const std::string& text) {
  const auto number = [](std::string_view digits, uint64_t* out) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), *out);
    return error == std::errc() && end == digits.data() + digits.size();
  };
  const size_t dots = text.find("..");
  const std::string_view all = text;
  StepRange range;
  const bool ok = dots == std::string::npos ? number(all, &range.first) && number(all, &range.last)
                                            : number(all.substr(0, dots), &range.first) &&
                                                  number(all.substr(dots + 2), &range.last);
  if (ok && range.first <= range.last) return range;
  return Status::Error(StatusCode::kInvalidArgument,
                       "--steps %s is no range of steps; write 10..20", text.c_str());
}

Status Summarize(const TraceFlags& flags) {
  SummaryOptions options;
  if (!flags.bandwidth.empty()) {
    ENGINE_ASSIGN_OR_RETURN(options.bandwidth, ParseBandwidth(flags.bandwidth));
  }
  if (!flags.steps.empty()) {
    ENGINE_ASSIGN_OR_RETURN(options.steps, ParseSteps(flags.steps));
  }
  ENGINE_ASSIGN_OR_RETURN(Trace trace, ReadTrace(flags.file));
  Result<TraceSummary> summary = SummarizeTrace(std::move(trace), options);
  if (!summary.ok()) return summary.status().WithContext("%s", flags.file.c_str());
  const std::string text = flags.json ? SummaryJson(*summary) : SummaryText(*summary, flags.file);
  std::fputs(launch::Printable(text).c_str(), stdout);
  return {};
}

}  // namespace

void AddTraceCommand(CLI::App& app, int* exit_code) {
  CLI::App* trace = app.add_subcommand("trace", "Read a trace that engine run --trace wrote");
  trace->require_subcommand(1);
  CLI::App* summary = trace->add_subcommand(
      "summary", "Print where the time of steps went, and who made whom wait");
  const auto flags = std::make_shared<TraceFlags>();
  summary->add_option("file", flags->file, "Trace file")->required()->type_name("FILE");
  summary
      ->add_option("--bandwidth", flags->bandwidth,
                   "Of the bottleneck link, each way: 375mbit, 45MB/s (default: as measured)")
      ->type_name("RATE");
  summary->add_option("--steps", flags->steps, "Only these steps (default: steady ones)")
      ->type_name("A..B");
  summary->add_flag("--json", flags->json, "For machines");
  summary->callback([flags, exit_code] { *exit_code = command::ReportError(Summarize(*flags)); });
}

}  // namespace engine::trace
