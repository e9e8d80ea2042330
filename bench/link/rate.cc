#include <algorithm>
#include <cctype>
#include <charconv>

#include "bench/link/linked_hosts.h"

namespace engine::bench {
namespace {

struct Unit {
  std::string_view name;
  double bits_per_second;
};

constexpr Unit kUnits[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
constexpr double kSmallest = 1e5;  // below, the first bucket alone would be seconds of traffic
constexpr double kLargest = 1e11;

}  // namespace

Result<double> ParseRate(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  double number = 0;
  const char* end = lower.data() + lower.size();
  const auto parsed = std::from_chars(lower.data(), end, number);
  const std::string_view unit(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
  for (const Unit& known : kUnits) {
    if (parsed.ec != std::errc() || unit != known.name) continue;
    const double rate = number * known.bits_per_second;
    if (rate >= kSmallest && rate <= kLargest) return rate;
  }
  return Status::Error(StatusCode::kInvalidArgument,
                       "'%.*s' is not the rate of a link; write a number and kbit, mbit or gbit, "
                       "from 100kbit to 100gbit, such as 375mbit",
                       static_cast<int>(text.size()), text.data());
}

}  // namespace engine::bench
