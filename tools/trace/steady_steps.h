// Which steps of a trace tell how the rest of a long run would go.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tools/trace/intervals.h"
#include "tools/trace/timeline_index.h"

namespace engine::trace {

struct StepRange {
  uint64_t first = 0;
  uint64_t last = UINT64_MAX;
};

struct StepChoice {
  std::vector<uint64_t> steps;                        // ascending
  std::vector<std::map<uint64_t, Interval>> windows;  // by position of the rank: of these steps
  std::string left_out;                               // "" or why which others were left out
};

// Steps of which all ranks have all spans. Without `wanted` also not the first two of the run, nor
// those with a flush in them or just before, as long as others are left. kBadData when no step is
// whole; kInvalidArgument when none is within `wanted`.
Result<StepChoice> ChooseSteps(const std::vector<TimelineIndex>& ranks, const StepRange* wanted);

// "3..7, 9": ascending numbers, for people.
std::string Ranges(const std::vector<uint64_t>& numbers);

}  // namespace engine::trace
