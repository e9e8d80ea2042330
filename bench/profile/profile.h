// Measured layer times of well-known networks, as models whose compute is a sleep: what is then
// measured is the scheduler and the communicator alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/status.h"

namespace engine::bench {

// One layer, or a group of neighbouring layers that counts as one.
struct ProfileLayer {
  const char* name = "";  // unique in its profile
  double backward_ms = 0;
  double gradient_mb = 0;  // 10^6 bytes of float32
};

// Layers in the order in which the backward pass makes their gradients ready: the last layer of
// the network comes first.
struct LayerProfile {
  std::string_view name;    // "vgg16"
  std::string_view source;  // of the numbers, and what is in them
  double forward_ms = 0;    // of all layers; shared out in proportion to their backward times
  std::span<const ProfileLayer> layers;
};

// kInvalidArgument lists the names.
Result<LayerProfile> FindProfile(std::string_view name);

struct ProfileOptions {
  double time_scale = 4;          // of every sleep; 0 to 1000
  double bytes_scale = 1.0 / 16;  // of every gradient; more than 0, to 1000
  double jitter = 0;  // 0 to less than 1, of every sleep: a factor in [1 - jitter, 1 + jitter), a
                      // function of seed, rank, layer and step
  int64_t steps = 20;
  uint64_t seed = 1;
  // Written as they are.
  std::string communicator = "tcp";
  std::string scheduler = "fifo_sched";
};

// What a report computes bounds from. All are of one step and one rank, scaled.
struct ProfileFacts {
  double forward_seconds = 0;   // F
  double backward_seconds = 0;  // B
  int64_t gradient_bytes = 0;   // M
};

// A model net { ... } of profile_ops, made-up data and sgd: the text of a configuration that
// `engine run` takes as it is. kInvalidArgument for an unknown name or a scale out of range.
Result<std::string> ProfileConfig(std::string_view name, const ProfileOptions& options);
Result<ProfileFacts> GetProfileFacts(std::string_view name, const ProfileOptions& options);

}  // namespace engine::bench
