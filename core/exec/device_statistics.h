// Statistics of steps on their way from an accelerator to the host, which reads those of a step
// while the device works on the next one.
#pragma once

#include <memory>

#include "core/exec/model_memory.h"

namespace engine::exec {

class DeviceStatistics {
 public:
  // `memory` must have an accelerator, and outlive this.
  static Result<std::unique_ptr<DeviceStatistics>> Create(ModelMemory& memory);
  ~DeviceStatistics();

  // Queues a copy of the statistics on `stream` as those of `step`. At most two steps are kept.
  Status Collect(uint64_t step, Stream* stream);

  // Whether those of `step` were collected and not read.
  bool has(uint64_t step) const { return step != 0 && slots_[step % 2].step == step; }

  // Waits for the device at most `timeout_ms`, for those of a step that it has.
  Status Wait(uint64_t step, int64_t timeout_ms);
  // Once per step, which was waited for.
  StepStatistics Take(uint64_t step);

 private:
  struct Slot {
    StepStatistics* copy = nullptr;  // pinned
    std::unique_ptr<Event> copied;
    uint64_t step = 0;
  };
  explicit DeviceStatistics(ModelMemory& memory) : memory_(memory) {}

  ModelMemory& memory_;
  Slot slots_[2];
};

}  // namespace engine::exec
