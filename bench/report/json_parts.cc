#include "bench/report/json_parts.h"

namespace engine::bench {

using Json = nlohmann::ordered_json;

Json SummaryJson(const Summary& summary) {
  return {{"median", summary.median}, {"p10", summary.p10},   {"p90", summary.p90},
          {"p99", summary.p99},       {"mean", summary.mean}, {"min", summary.min},
          {"max", summary.max}};
}

Json RatioJson(const Ratio& ratio) {
  return {{"b_over_a_speed", ratio.estimate},
          {"interval", {ratio.low, ratio.high}},
          {"confidence", 0.95},
          {"by_pair", ratio.by_pair},
          {"b_is", Name(Judge(ratio))}};
}

Json MachineJson(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"memory_gib", machine.memory_gib},
          {"kernel", machine.kernel},
          {"congestion_control", machine.congestion},
          {"load_before", machine.load},
          {"engine", machine.engine},
          {"command", machine.command_line},
          {"time", machine.time}};
}

}  // namespace engine::bench
