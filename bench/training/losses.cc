#include "bench/training/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/statistics/summary.h"

namespace engine::bench {
namespace {

bool Agree(double x, double y, double tolerance) {
  if (!std::isfinite(x) || !std::isfinite(y)) return false;
  return std::fabs(x - y) <= tolerance * std::max(std::fabs(x), std::fabs(y));
}

// NaN where a run has no such step.
double LossAt(const RunResult& run, size_t index) {
  return index < run.losses.size() ? run.losses[index] : std::numeric_limits<double>::quiet_NaN();
}

// Mean of the last ones of all runs of a side.
double LastLosses(const std::vector<RunResult>& runs, SideId side) {
  std::vector<double> last;
  for (const RunResult& run : runs) {
    if (run.side != side) continue;
    const size_t count = std::min(run.losses.size(), kLossWindow);
    last.insert(last.end(), run.losses.end() - static_cast<std::ptrdiff_t>(count),
                run.losses.end());
  }
  return Mean(last);
}

}  // namespace

std::optional<size_t> StepsTo(double target, const std::vector<double>& losses) {
  for (size_t end = kLossWindow; end <= losses.size(); ++end) {
    const auto last = losses.begin() + static_cast<std::ptrdiff_t>(end);
    if (Mean({last - kLossWindow, last}) <= target) return end;
  }
  return std::nullopt;
}

std::optional<LossDifference> FindLossDifference(const std::vector<RunResult>& runs,
                                                 double tolerance) {
  std::vector<size_t> compared;
  size_t steps = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].side == SideId::kNull) continue;
    compared.push_back(i);
    steps = std::max(steps, runs[i].losses.size());
  }
  if (compared.empty()) return std::nullopt;
  const size_t first = compared.front();
  for (size_t step = 0; step < steps; ++step) {
    for (const size_t other : compared) {
      const double x = LossAt(runs[first], step), y = LossAt(runs[other], step);
      if (Agree(x, y, tolerance)) continue;
      return LossDifference{static_cast<int64_t>(step) + 1, first, other, x, y};
    }
  }
  return std::nullopt;
}

std::string DifferenceInWords(const LossDifference& difference, const std::vector<RunResult>& runs,
                              double tolerance) {
  const auto run = [&](size_t index) {
    return fmt::format("run {} ({})", index + 1, Name(runs[index].side));
  };
  if (difference.run == difference.other_run) {
    return fmt::format(
        "no conclusion: the loss of step {} is {:g} in {}, so nothing can be compared",
        difference.step, difference.loss, run(difference.run));
  }
  const bool same_side = runs[difference.run].side == runs[difference.other_run].side;
  const double x = difference.loss, y = difference.other_loss;
  return fmt::format(
      "no conclusion: {}: at step {} the loss is {:.7g} in {} and {:.7g} in {}, {:.2g} % apart "
      "(--loss-tolerance {:g}); the last {} losses are {:.5g} with A and {:.5g} with B. "
      "Compare the time to a loss: --target-loss",
      same_side ? "a side does not reproduce itself" : "A and B do not compute the same thing",
      difference.step, x, run(difference.run), y, run(difference.other_run),
      100 * std::fabs(x - y) / std::max(std::fabs(x), std::fabs(y)), tolerance, kLossWindow,
      LastLosses(runs, SideId::kA), LastLosses(runs, SideId::kB));
}

}  // namespace engine::bench
