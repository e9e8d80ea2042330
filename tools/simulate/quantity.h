// Amounts as people write them: a number and a unit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/status.h"

namespace engine::simulate {

// Each returns kInvalidArgument with an example when `text` is none; `flag` names it in messages.

// "375mbit": bits per second, more than 0. Units bit, kbit, mbit, gbit (powers of 1000).
Result<double> ParseBitRate(const char* flag, const std::string& text);
// "50us": nanoseconds. Units ns, us, ms, s.
Result<int64_t> ParseTime(const char* flag, const std::string& text);
// "2,4,8" or "2..4096", which doubles and ends with the last: ascending numbers of ranks, 2 to
// 4096.
Result<std::vector<int32_t>> ParseRanks(const char* flag, const std::string& text);

}  // namespace engine::simulate
