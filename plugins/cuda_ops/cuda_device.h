// One GPU: memory from one arena, streams, events, pinned staging, recordings (CUDA graphs).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cuda_kit/error.h"
#include "engine/device.h"
#include "engine/ext/accelerator.h"
#include "kernels/fault.h"

// Returns from a function that gives a Status, unless `expression`, a cudaError_t, is a success.
#define CUDA_OPS_RETURN_IF_ERROR(expression, what) \
  ENGINE_RETURN_IF_ERROR(::engine::cuda_kit::ToStatus((expression), what))

namespace engine::cuda_ops {

using cuda_kit::ToStatus;

class StagingRing;
class CudaFlatMath;
struct MemoryOrder;

// Null: the default stream.
inline cudaStream_t Native(Stream* stream) noexcept {
  return stream == nullptr ? nullptr : static_cast<cudaStream_t>(stream->native());
}

class CudaDevice final : public DeviceBase, public AcceleratorBase {
 public:
  // kDevice or kPlugin with one sentence: what is missing (driver, device, compute capability 8.0),
  // what was found, what to do. `ordinal` -1: local_rank modulo the number of devices.
  static Status Create(int32_t ordinal, int32_t local_rank,
                       std::unique_ptr<CudaDevice>* out) noexcept;
  ~CudaDevice() override;

  // Makes this device the current one of the calling thread: before any call of the runtime.
  Status Use() const noexcept;

  // Waits until the device has come to `event`. kTimeout after that time.
  Status WaitFor(cudaEvent_t event, int64_t timeout_ms) const noexcept;
  // Whose memory a stream may allocate and free in its order.
  cudaMemPool_t arena() const noexcept { return arena_; }

  // Of the calls of kernels, and a word that they write faults to (device address).
  DeviceFault* fault_word() const noexcept { return fault_device_; }
  int32_t multiprocessors() const noexcept { return multiprocessors_; }
  // 10 * major + minor.
  int32_t capability() const noexcept { return capability_; }
  // "NVIDIA H200 (compute capability 9.0, driver 13.0, runtime 13.0)"
  const char* description() const noexcept { return description_; }

  // Device:
  void* Query(std::string_view id) noexcept override;
  const char* type() const noexcept override { return "cuda"; }
  Status Allocate(size_t size_bytes, void** out) noexcept override;
  void Free(void* memory) noexcept override;
  Status Copy(void* target, const void* source, size_t size_bytes,
              Stream* stream) noexcept override;
  Status Zero(void* target, size_t size_bytes, Stream* stream) noexcept override;
  Status CreateStream(Stream** out) noexcept override;
  Status CreateEvent(Event** out) noexcept override;

  // Accelerator:
  int32_t ordinal() const noexcept override { return ordinal_; }
  FlatMath& math() noexcept override;
  Status AllocateHost(size_t size_bytes, void** out) noexcept override;
  void FreeHost(void* memory) noexcept override;
  Status BeginRecording(Stream* stream) noexcept override;
  Status EndRecording(Stream* stream, Recording** out) noexcept override;
  Status Fault() noexcept override;

 private:
  explicit CudaDevice(int32_t ordinal) noexcept;
  Status Setup() noexcept;

  const int32_t ordinal_;
  int32_t multiprocessors_ = 0;
  int32_t capability_ = 0;
  char description_[256] = {};
  cudaMemPool_t arena_ = nullptr;
  std::shared_ptr<MemoryOrder> order_;
  DeviceFault* fault_host_ = nullptr;
  DeviceFault* fault_device_ = nullptr;
  std::unique_ptr<StagingRing> staging_;
  std::unique_ptr<CudaFlatMath> math_;
};

}  // namespace engine::cuda_ops
