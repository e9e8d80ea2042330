#include "tools/simulate/quantity.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "app/command/amount.h"
#include "app/launch/endpoint.h"

namespace engine::simulate {
namespace {

constexpr double kMost = 1e18;

constexpr int32_t kFewestRanks = 2, kMostRanks = 4096;

bool ParseRankCount(const std::string& text, int32_t* ranks) {
  return launch::ParseInt(text, kFewestRanks, kMostRanks, ranks);
}

}  // namespace

Result<double> ParseBitRate(const char* flag, const std::string& text) {
  return command::ParseAmount(flag, text, {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}},
                              1, kMost, "rate of a link; write 375mbit (bit, kbit, mbit, gbit)");
}

Result<int64_t> ParseTime(const char* flag, const std::string& text) {
  ENGINE_ASSIGN_OR_RETURN(
      const double time,
      command::ParseAmount(flag, text, {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}, 0, kMost,
                           "time; write 50us (ns, us, ms, s)"));
  return std::llround(time);
}

Result<std::vector<int32_t>> ParseRanks(const char* flag, const std::string& text) {
  const auto wrong = [&] {
    return Status::Error(StatusCode::kInvalidArgument,
                         "%s '%s' is no number of ranks; write 2,4,8 or 2..4096 (2 to 4096, "
                         "ascending)",
                         flag, text.c_str());
  };
  std::vector<int32_t> ranks;
  const size_t dots = text.find("..");
  if (dots != std::string::npos) {
    int32_t first = 0, last = 0;
    if (!ParseRankCount(text.substr(0, dots), &first) ||
        !ParseRankCount(text.substr(dots + 2), &last) || first > last) {
      return wrong();
    }
    for (int32_t n = first; n < last; n *= 2) ranks.push_back(n);
    ranks.push_back(last);
    return ranks;
  }
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ',');) {
    ranks.push_back(0);
    if (!ParseRankCount(one, &ranks.back())) return wrong();
  }
  if (ranks.empty() || text.back() == ',') return wrong();
  if (std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) != ranks.end()) {
    return wrong();
  }
  return ranks;
}

}  // namespace engine::simulate
