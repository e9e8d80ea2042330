#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "tools/trace/summary.h"

namespace engine {
namespace {

constexpr size_t kColumns = 100;

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  return text;
}

std::string Ms(double ns) {
  const double ms = ns / 1e6;
  return Format(ms < 1000 ? "%.2f" : "%.0f", ms);
}

std::string Bytes(double bytes) {
  if (bytes < 1e3) return Format("%.0f B", bytes);
  if (bytes < 1e6) return Format("%.1f kB", bytes / 1e3);
  return Format("%.2f MB", bytes / 1e6);
}

std::string MegabytesPerSecond(const std::optional<double>& rate) {
  if (!rate) return "-";
  return Format(*rate < 1e9 ? "%.1f" : "%.0f", *rate / 1e6);
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
  const std::string overlap = figures.overlap ? Format("%.3f", *figures.overlap) : "-";
  return Format("%-4s%8s%8s%9s%7s%7s%8s%7s%7s%8s%8s%8s%8s\n", name.c_str(),
                Ms(figures.step).c_str(), Ms(figures.forward).c_str(), Ms(figures.backward).c_str(),
                Ms(figures.hooks).c_str(), Ms(figures.update).c_str(), Ms(figures.other).c_str(),
                Ms(figures.exposed).c_str(), Ms(figures.silent).c_str(),
                Ms(figures.communication).c_str(), overlap.c_str(),
                MegabytesPerSecond(figures.algorithm_bandwidth).c_str(),
                MegabytesPerSecond(figures.bus_bandwidth).c_str());
}

std::string Head(const TraceSummary& summary, const std::string& title) {
  const auto plural = [](size_t count) { return count == 1 ? "" : "s"; };
  std::string steps = Format("%d rank%s, %zu step%s: ", summary.world_size,
                             plural(static_cast<size_t>(summary.world_size)), summary.steps.size(),
                             plural(summary.steps.size()));
  steps += Ranges(summary.steps);
  if (!summary.left_out.empty()) steps += "; left out: " + summary.left_out;
  std::string text = Labelled("trace", title, 10) + Labelled("steps", steps, 10);
  if (static_cast<size_t>(summary.world_size) != summary.ranks.size()) {
    text += Format("note      only %zu of these ranks are in the trace\n", summary.ranks.size());
  }
  if (summary.dropped > 0) {
    text += Format("note      %llu older spans did not fit into the recorder\n",
                   static_cast<unsigned long long>(summary.dropped));
  }
  if (summary.clock_error_ns > 0) {
    text += Format("note      clocks of other hosts are known to %s ms\n",
                   Ms(static_cast<double>(summary.clock_error_ns)).c_str());
  }
  for (const auto& [key, value] : summary.metadata) {
    const bool short_line = value.find('\n') == std::string::npos && key.size() + value.size() < 80;
    if (short_line) text += Format("%-9s ", key.c_str()) + value + "\n";
  }
  return text;
}

std::string Table(const TraceSummary& summary) {
  std::string text = Format(
      "\nmedians per step, in ms; bandwidths in MB/s\n%-4s%8s%8s%9s%7s%7s%7s"
      "%8s%7s%8s%8s%8s%8s\n",
      "rank", "step", "forward", "backward", "hooks", "update", "other", "exposed", "silent",
      "comm", "overlap", "algbw", "busbw");
  for (const auto& [rank, figures] : summary.ranks) {
    text += Row(std::to_string(rank), figures);
  }
  if (summary.ranks.size() > 1) text += Row("all", summary.all);
  return text + Format("a step takes %s ms (p10 %s, p90 %s)\n", Ms(summary.all.step).c_str(),
                       Ms(summary.step_p10_ns).c_str(), Ms(summary.step_p90_ns).c_str());
}

std::string Efficiency(const TraceSummary& summary) {
  std::string text = "\n";
  if (summary.goodput > 0) {
    text +=
        Format("link      %s per step each way, at %.2f MB/s = %.1f Mbit/s (%s)\n",
               Bytes(summary.link_bytes).c_str(), summary.goodput / 1e6, summary.goodput * 8 / 1e6,
               summary.goodput_given ? "as given" : "measured; see --bandwidth");
  } else {
    text += "link      no bytes of units were moved\n";
  }
  text += Format("bounds    F + B = %s ms, C = %s ms", Ms(summary.compute_ns).c_str(),
                 Ms(summary.ideal_ns).c_str());
  if (summary.compute_ns > 0) {
    text += Format(", r = C / (F + B) = %.2f", summary.ideal_ns / summary.compute_ns);
  }
  return text + Format("\nschedule  efficiency max(F + B, C) / T = %.3f\n", summary.efficiency);
}

std::string InversionLine(const char* what, const Inversions& inversions,
                          const std::vector<uint64_t>& by_rank) {
  if (inversions.overtaken == 0) return Labelled(what, "none", 16);
  const auto count = static_cast<unsigned long long>(inversions.overtaken);
  const auto step = static_cast<unsigned long long>(inversions.step);
  std::string text = Format("%llu transfers (%s) overtaken by %s; ", count,
                            Bytes(static_cast<double>(inversions.overtaken_bytes)).c_str(),
                            Bytes(static_cast<double>(inversions.bytes)).c_str());
  // Which may decide for all.
  if (by_rank.size() > 1) {
    text += Format("%llu of them on rank 0; ", static_cast<unsigned long long>(by_rank[0]));
  }
  text += Format("at worst by %s for %s ms: step %llu, rank %d, ",
                 Bytes(static_cast<double>(inversions.longest_bytes)).c_str(),
                 Ms(static_cast<double>(inversions.longest_ns)).c_str(), step, inversions.rank);
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
  const std::string label = Format("%8s ms", Ms(static_cast<double>(wait.wait_ns)).c_str());
  std::string text =
      Format("step %llu, rank %d: ", static_cast<unsigned long long>(wait.step), wait.rank);
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
    text += Format("%s%s %.0f %%", separator, Name(static_cast<CauseKind>(kind)),
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

}  // namespace engine
