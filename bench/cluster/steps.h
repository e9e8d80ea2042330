// Training steps of sides that take turns, on the ranks of this run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/config/config.h"
#include "bench/collectives/sessions.h"
#include "bench/statistics/ratio.h"
#include "engine/status.h"

namespace engine::bench {

struct TrainingSide {
  std::string name;
  std::vector<std::string> plugins, options;  // beside those of the common configuration
  config::Config config;                      // of `warmup` + measured steps
};

struct SideSteps {
  std::string name;
  Turns seconds;               // rank 0: of each round, of each measured step its slowest rank
  std::vector<double> losses;  // of the last round
  Status failure;              // then it had no further turns
};

// Collective: trains `rounds` times with each side. A side whose losses differ from those of the
// first by more than `tolerance`, relatively, has failed (kBadData): it computes something else.
Result<std::vector<SideSteps>> RaceTraining(const std::vector<TrainingSide>& sides, int rounds,
                                            int64_t warmup, double tolerance, Sessions& sessions);

}  // namespace engine::bench
