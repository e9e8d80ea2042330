#include "bench/collectives/format.h"

#include <fmt/format.h>

#include <cmath>

#include "app/plugins/option_value.h"

namespace engine::bench {
namespace {

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
  if (timing.iterations == 0) {
    return fmt::format("  {:>9} {:>9} {:>8} {:>8}", "-", "-", "-", timing.wrong);
  }
  return fmt::format("  {:9.1f} {:9.1f} {:8.3f} {:>8}", timing.us.median, timing.us.p99,
                     timing.busbw, timing.wrong < 0 ? "N/A" : "0");
}

std::string RatioColumns(const Ratio& ratio) {
  if (!HasInterval(ratio)) return fmt::format("  {:6.2f}x  too few pairs", ratio.estimate);
  return fmt::format("  {:6.2f}x  {:.2f} to {:.2f}  {}", ratio.estimate, ratio.low, ratio.high,
                     Name(Judge(ratio)));
}

// As wide as `width`, with two digits behind the point while there is room.
std::string NcclNumber(double value, int width) {
  int digits = 1;  // before the point
  for (double rest = value; rest >= 10 && digits < 20; rest /= 10) ++digits;
  return fmt::format("{:{}.{}f}", value, width,
                     digits < width - 2   ? 2
                     : digits < width - 1 ? 1
                                          : 0);
}

const char* NcclName(DType dtype) {
  return dtype == DType::kFloat32 ? "float" : dtype == DType::kFloat16 ? "half" : Name(dtype);
}

std::string NcclColumns(const Timing& timing) {
  if (timing.iterations == 0) {
    return fmt::format("  {:>7}  {:>6}  {:>6}  {:6}", "-", "-", "-", timing.wrong);
  }
  return fmt::format("  {}  {}  {}  {:>6}", NcclNumber(timing.us.median, 7),
                     NcclNumber(timing.algbw, 6), NcclNumber(timing.busbw, 6),
                     timing.wrong < 0 ? "N/A" : std::to_string(timing.wrong));
}

}  // namespace

std::string SizeText(int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const bool mib = bytes >= (1 << 20);
  const double value = static_cast<double>(bytes) / (mib ? 1 << 20 : 1 << 10);
  return fmt::format("{:.{}f} {}", value, value == std::floor(value) ? 0 : 1, mib ? "MiB" : "KiB");
}

std::string TableHead(const SweepRequest& request, const SweepConditions& conditions) {
  std::string text = fmt::format(
      "{} of {} in place, {} ranks ({}), {} cores, {}\n", Name(request.kind), Name(request.dtype),
      conditions.ranks, conditions.source, conditions.machine.cores, conditions.machine.cpu);
  std::string above(10, ' '), below = fmt::format("{:>10}", "size");
  for (const Contender& contender : request.contenders) {
    const std::string options = OptionsOf(contender);
    text += fmt::format("{}: {}{}{}\n", contender.label, PathOf(contender),
                        options.empty() ? "" : "  ", options);
    above += fmt::format("  {:37}", contender.label);
    below += fmt::format("  {:>9} {:>9} {:>8} {:>8}", "p50", "p99", "busbw", "#wrong");
  }
  text += "Time of the slowest rank in microseconds; busbw in GB/s as nccl-tests define it\n";
  if (request.contenders.size() == 2) below += "  B over A  95 % interval";
  above.erase(above.find_last_not_of(' ') + 1);
  return text + above + "\n" + below + "\n";
}

std::string TableRow(const SweepRow& row) {
  std::string text = fmt::format("{:>10}", SizeText(row.bytes));
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
  const auto count = [&](Conclusion conclusion) { return counts[static_cast<int>(conclusion)]; };
  return fmt::format(
      "Of {} sizes B is faster at {}, slower at {}, not separable at {}\n"
      "B over A is the mean over pairs of turns beside each other, not the ratio of the columns\n",
      compared, count(Conclusion::kFaster), count(Conclusion::kSlower),
      count(Conclusion::kNotSeparable));
}

std::string NcclHead(const SweepRequest& request, const SweepConditions& conditions,
                     size_t contender) {
  const Contender& side = request.contenders[contender];
  std::string text =
      fmt::format("# {}: communicator {}, {}, {} ranks, minBytes {} maxBytes {}\n# {}, {}\n#\n",
                  side.label, PathOf(side), Name(request.kind), conditions.ranks, request.min_bytes,
                  request.max_bytes, conditions.machine.engine, conditions.machine.cpu);
  text +=
      fmt::format("# {:50}           out-of-place                       in-place          \n", "");
  constexpr const char* kRows[][9] = {
      {"size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"},
      {"(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""}};
  for (const auto& row : kRows) {
    text += fmt::format("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}", row[0], row[1], row[2], row[3],
                        row[4]);
    for (int placement = 0; placement < kPlacements; ++placement) {
      text += fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", row[5], row[6], row[7], row[8]);
    }
    text += "\n";
  }
  return text;
}

std::string NcclRow(const SweepRequest& request, const SweepRow& row, size_t contender) {
  const bool reduces =
      request.kind == TransferKind::kAllReduce || request.kind == TransferKind::kReduceScatter;
  const char* const root = request.kind == TransferKind::kBroadcast ? "0" : "-1";
  return fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:>6}", row.bytes, row.count,
                     NcclName(request.dtype), reduces ? "sum" : "none", root) +
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
  return fmt::format("# {:20} : {} {}\n# {:20} : {:g} \n#\n", "Out of bounds values", wrong,
                     wrong != 0 ? "FAILED" : "OK", "Avg bus bandwidth",
                     figures != 0 ? sum / static_cast<double>(figures) : 0.0);
}

}  // namespace engine::bench
