// Ranks of one run whose units are pushed to servers and pulled from them: each has a scheduler of
// its own and goes on by itself, but for what servers and statistics make it wait for.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/scheduler/scheduler_rig.h"

namespace engine::test {

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
  std::vector<uint32_t> push_of_unit_;
  std::vector<Trace> traces_;
};

}  // namespace engine::test
