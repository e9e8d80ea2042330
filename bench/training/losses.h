// Whether runs computed the same thing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/training/result.h"

namespace engine::bench {

// Losses of single batches scatter; so many are taken together, as in the line of a run.
constexpr size_t kLossWindow = 20;

// How many steps it took until the mean of the last kLossWindow losses was at most `target`.
std::optional<size_t> StepsTo(double target, const std::vector<double>& losses);

// Compares each loss of every run but those of the null side with that of the first run at the same
// step. Two losses agree when they differ by at most `tolerance` times the larger magnitude; one
// that is not finite agrees with nothing. Returns the earliest step that disagrees.
std::optional<LossDifference> FindLossDifference(const std::vector<RunResult>& runs,
                                                 double tolerance);

// "no conclusion: A and B do not compute the same thing: ...": step, runs, values, and the losses in
// which each side ended.
std::string DifferenceInWords(const LossDifference& difference, const std::vector<RunResult>& runs,
                              double tolerance);

}  // namespace engine::bench
