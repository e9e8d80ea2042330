// Copies from ordinary host memory to the device that end for the caller when the call returns, and
// for the device later: through a ring of pinned buffers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>

#include "engine/status.h"

namespace engine::cuda_ops {

class StagingRing {
 public:
  StagingRing() = default;
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // Queues the copy on `stream`. Waits only when all buffers are under way. Pinned memory is
  // allocated at the first copies. Not on a stream that is being recorded. [any-thread]
  Status Copy(void* target, const void* source, size_t size_bytes, cudaStream_t stream) noexcept;

 private:
  static constexpr size_t kSlotBytes = size_t{4} << 20;
  static constexpr int kSlots = 4;
  struct Slot {
    void* memory = nullptr;
    cudaEvent_t done = nullptr;  // the last copy from it
  };
  Status Prepare(Slot* slot) noexcept;

  std::mutex mutex_;
  Slot slots_[kSlots];  // guarded by mutex_, as next_
  int next_ = 0;
};

}  // namespace engine::cuda_ops
