// Parts that the JSON of several reports share.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/machine/machine.h"
#include "bench/statistics/ratio.h"
#include "bench/statistics/summary.h"

namespace engine::bench {

nlohmann::ordered_json SummaryJson(const Summary& summary);
// "interval" is null on the side where it has no end: JSON has no infinity.
nlohmann::ordered_json RatioJson(const Ratio& ratio);
nlohmann::ordered_json MachineJson(const Machine& machine);

}  // namespace engine::bench
