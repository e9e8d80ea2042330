#include "gpu.h"

#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "cuda_error.h"
#include "cuda_kit/driver.h"
#include "engine/ext/accelerator.h"
#include "kit/deadline.h"

namespace engine::nccl {

Result<int32_t> ChooseGpu(Host& host) noexcept {
  Device* const device = host.device();
  if (device != nullptr) {
    auto* const accelerator = static_cast<Accelerator*>(device->Query(kAcceleratorId));
    if (accelerator == nullptr || std::string_view(device->type()) != "cuda") {
      return Status::Error(StatusCode::kUnsupported,
                           "nccl moves GPU memory, but the ops run on '%s': add cuda_ops, or "
                           "choose tcp or shm",
                           device->type());
    }
    return accelerator->ordinal();
  }
  int count = 0;
  ENGINE_RETURN_IF_ERROR(cuda_kit::CountDevices("nccl", "tcp or shm", &count));
  return host.rank_info().local_rank % count;
}

Status UseGpu(int32_t ordinal) noexcept {
  int current = -1;
  if (cudaGetDevice(&current) == cudaSuccess && current == ordinal) return {};
  return ToStatus(cudaSetDevice(ordinal), "choosing a GPU");
}

Result<GpuStream> GpuStream::Create() noexcept {
  int least = 0, greatest = 0;
  ENGINE_RETURN_IF_ERROR(
      ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities"));
  cudaStream_t stream = nullptr;
  ENGINE_RETURN_IF_ERROR(ToStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "making a stream"));
  return GpuStream(stream);
}

GpuStream::GpuStream(GpuStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}

GpuStream::~GpuStream() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

Status GpuStream::Drain(int64_t timeout_ms) const noexcept {
  const kit::Clock::time_point deadline = kit::DeadlineIn(timeout_ms);
  for (;;) {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error != cudaErrorNotReady) return ToStatus(error, "work of the GPU");
    if (kit::Clock::now() >= deadline) {
      return Status::Error(StatusCode::kTimeout, "work of the GPU did not end within %lld ms",
                           static_cast<long long>(timeout_ms));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace engine::nccl
