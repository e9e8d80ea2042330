// Ranks that push to servers and pull from them, side by side in one process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/conform/scheduler/scheduler_rig.h"

namespace engine::conform {

// Ranks of one run, each with a scheduler of its own, that go on by themselves but for what servers
// and statistics make them wait for.
class ServedRanks {
 public:
  // Equal rigs. `asynchronous`: a pull waits for no other rank.
  ServedRanks(std::vector<SchedulerRig*> rigs, bool asynchronous);

  // Runs all ranks side by side, in turns that `seed` draws, and returns what went wrong, or "".
  std::string Run(uint32_t seed, uint32_t steps);

  const Trace& trace(size_t rank) const { return traces_[rank]; }

 private:
  bool MayEnd(size_t rank, uint32_t task, uint32_t step) const;

  const std::vector<SchedulerRig*> rigs_;
  const bool asynchronous_;
  std::vector<uint32_t> push_of_bucket_;
  std::vector<Trace> traces_;
};

}  // namespace engine::conform
