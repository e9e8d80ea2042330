#include <cmath>
#include <string_view>

#include "app/command/amount.h"
#include "bench/link/linked_hosts.h"

namespace engine::bench {

Result<double> ParseRate(std::string_view text) {
  // Below the smallest, the first bucket alone would be seconds of traffic.
  const double rate = command::ParseAmount(text, {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}},
                                           /*least=*/1e5, /*most=*/1e11);
  if (!std::isnan(rate)) return rate;
  return Status::Error(StatusCode::kInvalidArgument,
                       "'%.*s' is not the rate of a link; write a number and kbit, mbit or gbit, "
                       "from 100kbit to 100gbit, such as 375mbit",
                       static_cast<int>(text.size()), text.data());
}

}  // namespace engine::bench
