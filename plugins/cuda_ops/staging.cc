#include "staging.h"

#include <algorithm>
#include <cstring>

#include "cuda_error.h"

namespace engine::cuda_ops {

StagingRing::~StagingRing() {
  for (Slot& slot : slots_) {
    if (slot.done != nullptr) (void)cudaEventSynchronize(slot.done);
    if (slot.done != nullptr) (void)cudaEventDestroy(slot.done);
    if (slot.memory != nullptr) (void)cudaFreeHost(slot.memory);
  }
}

Status StagingRing::Prepare(Slot* slot) noexcept {
  if (slot->memory == nullptr) {
    CUDA_OPS_RETURN_IF_ERROR(cudaMallocHost(&slot->memory, kSlotBytes), "pinned staging memory");
  }
  if (slot->done == nullptr) {
    CUDA_OPS_RETURN_IF_ERROR(cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming),
                             "an event of the staging memory");
    return {};
  }
  CUDA_OPS_RETURN_IF_ERROR(cudaEventSynchronize(slot->done), "an earlier copy to the device");
  return {};
}

Status StagingRing::Copy(void* target, const void* source, size_t size_bytes,
                         cudaStream_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  for (size_t begin = 0; begin < size_bytes; begin += kSlotBytes) {
    const size_t part = std::min(kSlotBytes, size_bytes - begin);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % kSlots;
    ENGINE_RETURN_IF_ERROR(Prepare(&slot));
    std::memcpy(slot.memory, static_cast<const std::byte*>(source) + begin, part);
    CUDA_OPS_RETURN_IF_ERROR(cudaMemcpyAsync(static_cast<std::byte*>(target) + begin, slot.memory,
                                             part, cudaMemcpyHostToDevice, stream),
                             "a copy to the device");
    CUDA_OPS_RETURN_IF_ERROR(cudaEventRecord(slot.done, stream), "a copy to the device");
  }
  return {};
}

}  // namespace engine::cuda_ops
