#include "gpu.h"

#include <string_view>
#include <utility>

#include "cuda_kit/driver.h"
#include "cuda_kit/wait.h"
#include "engine/ext/accelerator.h"

namespace engine::nccl {

Result<int32_t> ChooseGpu(Host& host) noexcept {
  Device* const device = host.device();
  if (device != nullptr) {
    auto* const accelerator = Query<Accelerator>(*device);
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

// The current GPU is a property of the thread: every entry point and the watchdog set it.
Status UseGpu(int32_t ordinal) noexcept {
  int current = -1;
  if (cudaGetDevice(&current) == cudaSuccess && current == ordinal) return {};
  return ToStatus(cudaSetDevice(ordinal), "choosing a GPU");
}

// Of the highest priority: thread blocks of a transfer start before those of compute that wait.
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
  return cuda_kit::WaitFor([this] { return cudaStreamQuery(stream_); }, timeout_ms,
                           "work of the GPU");
}

}  // namespace engine::nccl
