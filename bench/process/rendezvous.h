// Ranks that wait for each other in the store, asleep: whoever is late has the cores.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/base/rank_context.h"
#include "engine/status.h"

namespace engine::bench {

class Rendezvous {
 public:
  Rendezvous(base::RankContext& rank, int64_t timeout_ms) : rank_(rank), timeout_ms_(timeout_ms) {}

  // Collective. Every rank brings `text`; rank 0 is given those of all ranks, by rank, and what it
  // answers is returned on all of them. kInterrupted on all ranks when the user asks rank 0 to
  // stop.
  Result<std::string> Meet(
      const std::string& text,
      const std::function<std::string(const std::vector<std::string>&)>& answer);
  // Collective; nothing is exchanged.
  Status Wait();
  // Collective: on rank 0 the largest of each of the values that ranks bring, as many on all.
  Result<std::vector<double>> Largest(const std::vector<double>& values);

 private:
  base::RankContext& rank_;
  const int64_t timeout_ms_;
  int64_t rendezvous_ = 0;
};

}  // namespace engine::bench
