#include "bench/collectives/format.h"

#include <cmath>
#include <cstdio>

#include "app/plugins/option_value.h"

namespace engine::bench {
namespace {

template <typename... Values>
std::string Format(const char* format, Values... values) {
  char text[512];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

// "4 B", "64 KiB", "64 MiB"
std::string Size(int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const bool mib = bytes >= (1 << 20);
  const double value = static_cast<double>(bytes) / (mib ? 1 << 20 : 1 << 10);
  return Format(value == std::floor(value) ? "%.0f %s" : "%.1f %s", value, mib ? "MiB" : "KiB");
}

std::string PathOf(const Contender& contender) {
  return contender.choice.entry.name + " (" + contender.choice.entry.path + ")";
}

std::string OptionsOf(const Contender& contender) {
  std::string text;
  for (const plugin::OwnedOption& option : contender.choice.options) {
    text += (text.empty() ? "" : " ") + option.name + "=" + plugins::ToText(option);
  }
  return text;
}

std::string TimingColumns(const Timing& timing) {
  if (timing.wrong > 0)
    return Format("  %9s %9s %8s %8lld", "-", "-", "-", static_cast<long long>(timing.wrong));
  const std::string wrong = timing.wrong < 0 ? "N/A" : "0";
  return Format("  %9.1f %9.1f %8.3f %8s", timing.us.median, timing.us.p99, timing.busbw,
                wrong.c_str());
}

std::string RatioColumns(const Ratio& ratio) {
  return Format("  %6.2fx  %.2f to %.2f  %s", ratio.estimate, ratio.low, ratio.high,
                Name(Judge(ratio)));
}

// As wide as `width`, with two digits behind the point while there is room.
std::string NcclNumber(double value, int width) {
  int digits = 1;  // before the point
  for (double rest = value; rest >= 10 && digits < 20; rest /= 10) ++digits;
  return Format("%*.*f", width, digits < width - 2 ? 2 : digits < width - 1 ? 1 : 0, value);
}

std::string NcclColumns(const Timing& timing) {
  if (timing.iterations == 0) {
    return Format("  %7s  %6s  %6s  %6lld", "-", "-", "-", static_cast<long long>(timing.wrong));
  }
  const std::string wrong =
      timing.wrong < 0 ? "   N/A" : Format("%6lld", static_cast<long long>(timing.wrong));
  return "  " + NcclNumber(timing.us.median, 7) + "  " + NcclNumber(timing.algbw, 6) + "  " +
         NcclNumber(timing.busbw, 6) + "  " + wrong;
}

}  // namespace

std::string TableHead(const SweepRequest& request, const SweepConditions& conditions) {
  std::string text = Format("%s of float32 in place, %d ranks (%s), %d cores, %s\n",
                            Name(request.kind), conditions.ranks, conditions.source.c_str(),
                            conditions.machine.cores, conditions.machine.cpu.c_str());
  for (const Contender& contender : request.contenders) {
    const std::string options = OptionsOf(contender);
    text +=
        contender.label + ": " + PathOf(contender) + (options.empty() ? "" : "  " + options) + "\n";
  }
  text += "Time of the slowest rank in microseconds; busbw in GB/s as nccl-tests define it\n";
  std::string above = Format("%10s", ""), below = Format("%10s", "size");
  for (const Contender& contender : request.contenders) {
    above += Format("  %-37s", contender.label.c_str());
    below += Format("  %9s %9s %8s %8s", "p50", "p99", "busbw", "#wrong");
  }
  if (request.contenders.size() == 2) below += "  B over A  95 % interval";
  while (!above.empty() && above.back() == ' ') above.pop_back();
  return text + above + "\n" + below + "\n";
}

std::string TableRow(const SweepRow& row) {
  std::string text = Format("%10s", Size(row.bytes).c_str());
  for (const Timing& timing : row.timings[kInPlace]) text += TimingColumns(timing);
  if (row.ratio[kInPlace]) text += RatioColumns(*row.ratio[kInPlace]);
  return text + "\n";
}

std::string TableFoot(const SweepRequest& request, const SweepResult& result) {
  if (request.contenders.size() != 2) return "";
  int counts[3] = {}, compared = 0;
  for (const SweepRow& row : result.rows) {
    if (!row.ratio[kInPlace]) continue;
    ++counts[static_cast<int>(Judge(*row.ratio[kInPlace]))];
    ++compared;
  }
  return Format("Of %d sizes B is faster at %d, slower at %d, not separable at %d\n", compared,
                counts[static_cast<int>(Conclusion::kFaster)],
                counts[static_cast<int>(Conclusion::kSlower)],
                counts[static_cast<int>(Conclusion::kNotSeparable)]);
}

std::string NcclHead(const SweepRequest& request, const SweepConditions& conditions,
                     size_t contender) {
  const Contender& side = request.contenders[contender];
  std::string text =
      Format("# %s: communicator %s, %s, %d ranks, minBytes %lld maxBytes %lld\n",
             side.label.c_str(), PathOf(side).c_str(), Name(request.kind), conditions.ranks,
             static_cast<long long>(request.min_bytes), static_cast<long long>(request.max_bytes));
  text += "# " + conditions.machine.engine + ", " + conditions.machine.cpu + "\n#\n";
  text += Format(
      "# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place "
      "         \n",
      "", "", "", "", "");
  text += Format("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "size",
                 "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",
                 "algbw", "busbw", "#wrong");
  text += Format("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "(B)",
                 "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)",
                 "(GB/s)", "");
  return text;
}

std::string NcclRow(const SweepRequest& request, const SweepRow& row, size_t contender) {
  const bool reduces =
      request.kind == TransferKind::kAllReduce || request.kind == TransferKind::kReduceScatter;
  const char* const root = request.kind == TransferKind::kBroadcast ? "0" : "-1";
  return Format("%12lld  %12lld  %8s  %6s  %6s", static_cast<long long>(row.bytes),
                static_cast<long long>(row.count), "float", reduces ? "sum" : "none", root) +
         NcclColumns(row.timings[kOutOfPlace][contender]) +
         NcclColumns(row.timings[kInPlace][contender]) + "\n";
}

std::string NcclFoot(const SweepResult& result, size_t contender) {
  double sum = 0;
  int64_t wrong = 0, figures = 0;
  for (const SweepRow& row : result.rows) {
    for (const auto& timings : row.timings) {
      const Timing& timing = timings[contender];
      if (timing.wrong > 0) ++wrong;
      sum += timing.busbw;
      ++figures;
    }
  }
  return Format("# %-20s : %lld %s\n", "Out of bounds values", static_cast<long long>(wrong),
                wrong != 0 ? "FAILED" : "OK") +
         Format("# %-20s : %g \n#\n", "Avg bus bandwidth",
                figures != 0 ? sum / static_cast<double>(figures) : 0.0);
}

}  // namespace engine::bench
