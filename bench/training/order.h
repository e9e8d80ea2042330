// In which order the sides take turns.
#pragma once

#include <vector>

#include "bench/training/result.h"

namespace engine::bench {

struct Turn {
  SideId side = SideId::kA;
  int block = 0;
  int pair = 0;
};

// A B B A, `blocks` times; `with_null`: each block ends in a run without communication.
std::vector<Turn> MakeOrder(int blocks, bool with_null);

// The neighbours of each block, as pairs of their times: [A B] [B A]. Null runs are left
// out. `runs` are in the order of MakeOrder.
std::vector<Pair> MakePairs(const std::vector<RunResult>& runs);

}  // namespace engine::bench
