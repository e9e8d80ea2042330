// The ranks of one communicator.
#pragma once

#include <string>
#include <vector>

#include "engine/host.h"
#include "engine/status.h"

namespace engine::nccl {

struct Members {
  // All ranks of the run. `prefix`: of the keys of this communicator in the store.
  static Members All(const RankInfo& ranks, std::string prefix);

  int32_t size() const noexcept { return static_cast<int32_t>(names.size()); }

  int32_t rank = 0;            // of this one, among them
  std::vector<int32_t> names;  // of each, its rank in the run: what errors call it
  std::string prefix;
};

// kRendezvous: all have come, and NCCL did not connect the one named `rank`.
Status DidNotConnect(int32_t rank, int32_t size, int64_t timeout_ms) noexcept;

}  // namespace engine::nccl
