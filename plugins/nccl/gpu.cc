#include "gpu.h"

#include <string_view>
#include <thread>
#include <utility>

#include "clock.h"
#include "cuda_error.h"
#include "engine/accelerator.h"

namespace engine::nccl {
namespace {

Status CheckDriver() noexcept {
  int driver = 0, runtime = 0, count = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  (void)cudaGetLastError();
  if (error == cudaErrorInsufficientDriver && driver == 0) {
    return Status::Error(StatusCode::kPlugin,
                         "nccl needs an NVIDIA driver and a GPU, and this machine has no driver "
                         "(CUDA runtime %d.%d is there): install the driver, or choose gloo or shm",
                         runtime / 1000, runtime % 1000 / 10);
  }
  if (error == cudaErrorInsufficientDriver) {
    return Status::Error(StatusCode::kPlugin,
                         "nccl needs an NVIDIA driver for CUDA %d.%d, and the one here is for "
                         "CUDA %d.%d: install a newer driver, or choose gloo or shm",
                         runtime / 1000, runtime % 1000 / 10, driver / 1000, driver % 1000 / 10);
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return Status::Error(StatusCode::kPlugin,
                         "nccl needs a GPU, and none is visible here: see nvidia-smi and "
                         "CUDA_VISIBLE_DEVICES, or choose gloo or shm");
  }
  return Status::Error(StatusCode::kPlugin,
                       "nccl needs a GPU, and the CUDA runtime has none to offer (%s: %s): see "
                       "nvidia-smi, or choose gloo or shm",
                       cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace

Result<int32_t> ChooseGpu(Host& host) noexcept {
  Device* const device = host.device();
  if (device != nullptr) {
    auto* const accelerator = static_cast<Accelerator*>(device->Query(kAcceleratorId));
    if (accelerator == nullptr || std::string_view(device->type()) != "cuda") {
      return Status::Error(StatusCode::kUnsupported,
                           "nccl moves GPU memory, but the ops run on '%s': add cuda_ops, or "
                           "choose gloo or shm",
                           device->type());
    }
    ENGINE_RETURN_IF_ERROR(CheckDriver());
    return accelerator->ordinal();
  }
  ENGINE_RETURN_IF_ERROR(CheckDriver());
  int count = 0;
  ENGINE_RETURN_IF_ERROR(ToStatus(cudaGetDeviceCount(&count), "counting GPUs"));
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
  const Clock::time_point deadline = DeadlineIn(timeout_ms);
  for (;;) {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error != cudaErrorNotReady) return ToStatus(error, "work of the GPU");
    if (Clock::now() >= deadline) {
      return Status::Error(StatusCode::kTimeout, "work of the GPU did not end within %lld ms",
                           static_cast<long long>(timeout_ms));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace engine::nccl
