// What measurements say about which contender to use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/collectives/sweep.h"
#include "bench/statistics/ratio.h"

namespace engine::bench {

// The one with the least median, and its speed over the next one, of those that took part in every
// round. Alone it has no ratio; none was timed: nullopt.
struct Winner {
  size_t contender = 0, next = 0;
  std::optional<Ratio> ratio;
  // Its lead is no accident, with 95 % confidence.
  bool sure() const { return !ratio || Judge(*ratio) == Conclusion::kFaster; }
};
std::optional<Winner> WinnerOf(const std::vector<Turns>& contenders, uint64_t seed);
// Of the in-place figures of a row.
std::optional<Winner> WinnerOf(const SweepRow& row, uint64_t seed);
// "shm 1.42x", "~ shm, tcp" where the two are not separable, "-".
std::string WinnerText(const std::optional<Winner>& winner, const std::vector<std::string>& names);

// Of each round the geometric mean over all sizes. Empty for a contender that lacks a size.
std::vector<Turns> OverSizes(const SweepResult& result);

// Up to how many bytes whom to use for an operation. Another contender follows only where it is
// surely faster than the one before, so noise makes no entries.
struct Entry {
  TransferKind kind = TransferKind::kAllReduce;
  int64_t up_to_bytes = INT64_MAX;
  size_t contender = 0;
};
std::vector<Entry> EntriesOf(const SweepRequest& request, const SweepResult& result);

// The options of by_size (plugins/by_size) that make it so, or nothing: one contender for all, or
// more than it takes.
std::vector<std::string> BySizeOptions(const std::vector<Entry>& entries,
                                       const std::vector<std::string>& names);

// Lines of a configuration: the plugins, and a block for each that has options, "tcp.io_threads=1".
std::string Fragment(const std::vector<std::string>& plugins,
                     const std::vector<std::string>& options);

}  // namespace engine::bench
