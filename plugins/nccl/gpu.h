// The GPU of a rank.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda_kit/error.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine::nccl {

using cuda_kit::ToStatus;

// The ordinal of the GPU whose memory is moved: that of the host's device. kUnsupported when the
// ops run elsewhere. A host without a device (plugins that are made before their ops, tests) has
// local_rank modulo the number of GPUs. kPlugin when this machine has no driver or no GPU.
Result<int32_t> ChooseGpu(Host& host) noexcept;

// Makes GPU `ordinal` the current one of the calling thread; cheap when it is already.
Status UseGpu(int32_t ordinal) noexcept;

// A stream of the highest priority, which waits for no other unless it is told to.
class GpuStream {
 public:
  // On the current GPU.
  static Result<GpuStream> Create() noexcept;

  GpuStream(GpuStream&& other) noexcept;
  GpuStream& operator=(GpuStream&&) = delete;
  ~GpuStream();

  cudaStream_t get() const noexcept { return stream_; }

  // Waits until all that was queued is done: kTimeout after `timeout_ms`.
  Status Drain(int64_t timeout_ms) const noexcept;

 private:
  explicit GpuStream(cudaStream_t stream) noexcept : stream_(stream) {}
  cudaStream_t stream_;
};

}  // namespace engine::nccl
