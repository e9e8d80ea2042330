#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tools/trace/summary.h"

namespace engine::trace {
namespace {

constexpr size_t kColumns = 100;

std::string Ms(double ns) {
  const double ms = ns / 1e6;
  return fmt::format("{:.{}f}", ms, ms < 1000 ? 2 : 0);
}

std::string Bytes(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  return fmt::format("{:.2f} MB", bytes / 1e6);
}

std::string MegabytesPerSecond(const std::optional<double>& rate) {
  if (!rate) return "-";
  return fmt::format("{:.{}f}", *rate / 1e6, *rate < 1e9 ? 1 : 0);
}

// `text`, which begins at the column `indent`, broken between words; more lines begin there too.
std::string Wrapped(const std::string& text, size_t indent) {
  std::string result;
  size_t column = indent;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin + 1), text.size());
    if (column > indent && column + (end - begin) > kColumns) {
      result.append(1, '\n').append(indent, ' ');
      column = indent;
      if (text[begin] == ' ') ++begin;
    }
    result.append(text, begin, end - begin);
    column += end - begin;
    begin = end;
  }
  return result.append(1, '\n');
}

// A line that begins with `label`, padded to `indent`.
std::string Labelled(std::string label, const std::string& text, size_t indent) {
  label.resize(std::max(label.size(), indent), ' ');
  return label + Wrapped(text, indent);
}

std::string Row(const std::string& name, const StepFigures& figures) {
  const std::string overlap = figures.overlap ? fmt::format("{:.3f}", *figures.overlap) : "-";
  return fmt::format("{:<4}{:>8}{:>8}{:>9}{:>7}{:>7}{:>8}{:>7}{:>7}{:>8}{:>8}{:>8}{:>8}\n", name,
                     Ms(figures.step), Ms(figures.forward), Ms(figures.backward), Ms(figures.hooks),
                     Ms(figures.update), Ms(figures.other), Ms(figures.exposed), Ms(figures.silent),
                     Ms(figures.communication), overlap,
                     MegabytesPerSecond(figures.algorithm_bandwidth),
                     MegabytesPerSecond(figures.bus_bandwidth));
}

std::string Head(const TraceSummary& summary, const std::string& title) {
  const auto plural = [](size_t count) { return count == 1 ? "" : "s"; };
  std::string steps = fmt::format("{} rank{}, {} step{}: ", summary.world_size,
                                  plural(static_cast<size_t>(summary.world_size)),
                                  summary.steps.size(), plural(summary.steps.size()));
  steps += Ranges(summary.steps);
  if (!summary.left_out.empty()) steps += "; left out: " + summary.left_out;
  std::string text = Labelled("trace", title, 10) + Labelled("steps", steps, 10);
  if (static_cast<size_t>(summary.world_size) != summary.ranks.size()) {
    text +=
        fmt::format("note      only {} of these ranks are in the trace\n", summary.ranks.size());
  }
  if (summary.dropped > 0) {
    text +=
        fmt::format("note      {} older spans did not fit into the recorder\n", summary.dropped);
  }
  if (summary.clock_error_ns > 0) {
    text += fmt::format("note      clocks of other hosts are known to {} ms\n",
                        Ms(static_cast<double>(summary.clock_error_ns)));
  }
  for (const auto& [key, value] : summary.metadata) {
    const bool short_line = value.find('\n') == std::string::npos && key.size() + value.size() < 80;
    if (short_line) text += fmt::format("{:<9} ", key) + value + "\n";
  }
  return text;
}

std::string Table(const TraceSummary& summary) {
  std::string text = fmt::format(
      "\nmedians per step, in ms; bandwidths in MB/s\n{:<4}{:>8}{:>8}{:>9}{:>7}{:>7}{:>7}"
      "{:>8}{:>7}{:>8}{:>8}{:>8}{:>8}\n",
      "rank", "step", "forward", "backward", "hooks", "update", "other", "exposed", "silent",
      "comm", "overlap", "algbw", "busbw");
  for (const auto& [rank, figures] : summary.ranks) text += Row(std::to_string(rank), figures);
  if (summary.ranks.size() > 1) text += Row("all", summary.all);
  return text + fmt::format("a step takes {} ms (p10 {}, p90 {})\n", Ms(summary.all.step),
                            Ms(summary.step_p10_ns), Ms(summary.step_p90_ns));
}

std::string Efficiency(const TraceSummary& summary) {
  std::string text = "\n";
  if (summary.goodput > 0) {
    text += fmt::format("link      {} per step each way, at {:.2f} MB/s = {:.1f} Mbit/s ({})\n",
                        Bytes(summary.link_bytes), summary.goodput / 1e6, summary.goodput * 8 / 1e6,
                        summary.goodput_given ? "as given" : "measured; see --bandwidth");
  } else {
    text += "link      no bytes of buckets were moved\n";
  }
  text += fmt::format("bounds    F + B = {} ms, C = {} ms", Ms(summary.compute_ns),
                      Ms(summary.ideal_ns));
  if (summary.compute_ns > 0) {
    text += fmt::format(", r = C / (F + B) = {:.2f}", summary.ideal_ns / summary.compute_ns);
  }
  return text +
         fmt::format("\nschedule  efficiency max(F + B, C) / T = {:.3f}\n", summary.efficiency);
}

std::string InversionLine(const char* what, const Inversions& inversions,
                          const std::vector<uint64_t>& by_rank) {
  if (inversions.overtaken == 0) return Labelled(what, "none", 16);
  std::string text = fmt::format("{} transfers ({}) overtaken by {}; ", inversions.overtaken,
                                 Bytes(static_cast<double>(inversions.overtaken_bytes)),
                                 Bytes(static_cast<double>(inversions.bytes)));
  // Which may decide for all.
  if (by_rank.size() > 1) text += fmt::format("{} of them on rank 0; ", by_rank[0]);
  text +=
      fmt::format("at worst by {} for {} ms: step {}, rank {}, ",
                  Bytes(static_cast<double>(inversions.longest_bytes)),
                  Ms(static_cast<double>(inversions.longest_ns)), inversions.step, inversions.rank);
  return Labelled(what, text + inversions.name, 16);
}

std::string InversionLines(const TraceSummary& summary) {
  std::string text =
      "\npriority inversions, all ranks\n" +
      InversionLine("  at submission", summary.submission, summary.submission_by_rank);
  if (!summary.first_byte_known) {
    return text + "  on the wire   not known: the communicator does not say when it sends\n";
  }
  return text + InversionLine("  on the wire", summary.first_byte, summary.first_byte_by_rank);
}

std::string WaitLines(const LongWait& wait) {
  const std::string label = fmt::format("{:>8} ms", Ms(static_cast<double>(wait.wait_ns)));
  std::string text = fmt::format("step {}, rank {}: ", wait.step, wait.rank);
  text += wait.task.empty() ? "(the end of the step or of a flush)" : wait.task;
  if (!wait.forward.empty()) text += " for " + wait.forward;
  if (!wait.transfer.empty()) text += ", after " + wait.transfer;
  return Labelled(label, text, 13) + Labelled("", wait.cause_text, 13);
}

std::string Waits(const TraceSummary& summary) {
  if (summary.longest_waits.empty()) return "\nno waits\n";
  std::string text = "\nwaits by their largest cause:";
  const char* separator = " ";
  for (int32_t kind = 0; kind <= static_cast<int32_t>(CauseKind::kUnknown); ++kind) {
    const double ns = summary.waits_by_cause_ns[kind];
    if (ns <= 0) continue;
    text += fmt::format("{}{} {:.0f} %", separator, Name(static_cast<CauseKind>(kind)),
                        100 * ns / summary.waits_ns);
    separator = ", ";
  }
  text += "\nlongest waits\n";
  for (const LongWait& wait : summary.longest_waits) text += WaitLines(wait);
  return text;
}

}  // namespace

std::string SummaryText(const TraceSummary& summary, const std::string& title) {
  return Head(summary, title) + Table(summary) + Efficiency(summary) + InversionLines(summary) +
         Waits(summary);
}

}  // namespace engine::trace
