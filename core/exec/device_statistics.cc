// Two slots, of even and odd steps: step t is read while step t+1 is queued, and its slot is written
// again by step t+2, which is queued after that.
#include "core/exec/device_statistics.h"

#include <new>

namespace engine::exec {

Result<std::unique_ptr<DeviceStatistics>> DeviceStatistics::Create(ModelMemory& memory) {
  std::unique_ptr<DeviceStatistics> made(new DeviceStatistics(memory));
  for (Slot& slot : made->slots_) {
    void* pinned = nullptr;
    ENGINE_RETURN_IF_ERROR(memory.accelerator()->AllocateHost(sizeof(StepStatistics), &pinned));
    slot.copy = new (pinned) StepStatistics;
    Event* event = nullptr;
    ENGINE_RETURN_IF_ERROR(memory.device().CreateEvent(&event));
    slot.copied.reset(event);
  }
  return made;
}

DeviceStatistics::~DeviceStatistics() {
  for (Slot& slot : slots_) memory_.accelerator()->FreeHost(slot.copy);
}

Status DeviceStatistics::Collect(uint64_t step, Stream* stream) {
  Slot& slot = slots_[step % 2];
  ENGINE_RETURN_IF_ERROR(
      memory_.device().Copy(slot.copy, memory_.statistics(), sizeof(StepStatistics), stream));
  ENGINE_RETURN_IF_ERROR(stream->Record(slot.copied.get()));
  slot.step = step;
  return {};
}

Status DeviceStatistics::Wait(uint64_t step, int64_t timeout_ms) {
  ENGINE_CHECK(has(step), "statistics of step %llu", static_cast<unsigned long long>(step));
  return slots_[step % 2].copied->WaitHost(timeout_ms);
}

StepStatistics DeviceStatistics::Take(uint64_t step) {
  slots_[step % 2].step = 0;
  return *slots_[step % 2].copy;
}

}  // namespace engine::exec
