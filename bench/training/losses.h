// Whether runs computed the same thing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/training/result.h"

namespace engine::bench {

// Compares each loss of every run but those of the null side with that of the first run at the same
// step. Two losses agree when they differ by at most `tolerance` times the larger magnitude; one
// that is not finite agrees with nothing. Returns the earliest step that disagrees.
std::optional<LossDifference> FindLossDifference(const std::vector<RunResult>& runs,
                                                 double tolerance);

// "no conclusion: the losses differ: ...": step, sides and values.
std::string DifferenceInWords(const LossDifference& difference, const std::vector<RunResult>& runs,
                              double tolerance);

}  // namespace engine::bench
