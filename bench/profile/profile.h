// Measured layer times of well-known networks, as models whose compute is a sleep: what is then
// measured is the scheduler and the communicator alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "app/config/config.h"

namespace engine::bench {

// The texts of configs/profile_NAME.pbtxt, by name.
std::map<std::string, std::string> Profiles();

// What a report computes bounds from. All are of one step and one rank.
struct ProfileFacts {
  double forward_seconds = 0;   // F
  double backward_seconds = 0;  // B
  int64_t gradient_bytes = 0;   // M
};

// What a configuration states whose model is a net of nothing but profile_layers.
std::optional<ProfileFacts> FactsOf(const config::Config& config);

}  // namespace engine::bench
