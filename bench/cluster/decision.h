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

struct ClusterSweep {
  SweepRequest request;
  SweepResult result;
};

// The options of by_size (plugins/by_size) by which each operation of the sweeps, at each size, gets
// the fastest contender; by the first dtype, and among those that `names` names. Another one follows
// only where it is surely faster than the one before, so noise makes no rows. Nothing where one
// contender is enough, or more are needed than it takes.
std::vector<std::string> BySizeOptions(const std::vector<ClusterSweep>& sweeps,
                                       const std::vector<std::string>& names);

// Lines of a configuration: the plugins, and a block for each of them or inside of them that has
// options which are not the default. Those that describe a host are left out.
std::string Fragment(const std::vector<plugin::PluginChoice>& plugins);

}  // namespace engine::bench
