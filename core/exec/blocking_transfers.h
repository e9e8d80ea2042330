// Transfers outside of a step, each waited for: the beginning of a run, evaluation, checkpoints.
#pragma once

#include <cstdint>
#include <span>

#include "engine/communicator.h"

namespace engine::exec {

class StepRunner;

// [compute-lane] When no step is under way. A transfer that fails ends the run.
class BlockingTransfers {
 public:
  // All is borrowed.
  BlockingTransfers(Communicator& communicator, StepRunner& runner, int64_t timeout_ms)
      : communicator_(communicator), runner_(runner), timeout_ms_(timeout_ms) {}

  Status Run(const Transfer& transfer) { return Run(transfer, timeout_ms_); }
  Status Run(Transfer transfer, int64_t timeout_ms);
  // In any order; as one group where the communicator has groups. Numbers the transfers.
  Status RunTogether(std::span<Transfer> transfers);

 private:
  Status Await(Status submitted, Work* work, int64_t timeout_ms);

  Communicator& communicator_;
  StepRunner& runner_;
  const int64_t timeout_ms_;
};

}  // namespace engine::exec
