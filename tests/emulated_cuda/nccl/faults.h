// What goes wrong in the fake NCCL, told by the environment variable FAKE_NCCL_FAULT:
//
//   faults := fault (',' fault)*
//   fault  := 'version=' code          ncclGetVersion says so, 21803 for 2.18.3
//           | 'policy=' number        ncclCommInitRankConfig refuses another CTAPolicy
//           | 'init'                   ncclCommInitRankConfig never ends
//           | 'split'                  ncclCommSplit never ends
//           | 'group'                  ncclGroupStart is refused with ncclInvalidUsage
//           | 'busy'                   no collective is ever taken by NCCL
//           | 'absent=' rank '@' call  that collective of that rank never begins on its stream
//           | 'error=' rank '@' call   ncclSystemError comes up by itself once that many were taken
//           | 'remote=' rank '@' call  ncclRemoteError, likewise
//           | 'refuse=' rank '@' call  that collective is refused with ncclInvalidUsage
//           | 'memory'                 ncclMemAlloc has none to give
#pragma once

#include <cstdint>

namespace fake_nccl {

struct At {
  int rank = -1;
  int64_t call = -1;
  bool Is(int r, int64_t c) const { return rank == r && call == c; }
};

struct Faults {
  int version = 22809, policy = -1;
  bool init = false, split = false, group = false, busy = false, memory = false;
  At absent, error, remote, refuse;
};

// As the environment says now; a fault that is not known ends the process.
Faults ReadFaults();

}  // namespace fake_nccl
