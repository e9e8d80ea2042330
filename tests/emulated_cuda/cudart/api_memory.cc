// Memory and copies.
#include <cstring>
#include <memory>
#include <vector>

#include "tests/emulated_cuda/cudart/process.h"

using emulated_cuda::Allocation;
using emulated_cuda::CurrentDevice;
using emulated_cuda::Leave;
using emulated_cuda::Place;
using emulated_cuda::Process;

namespace {

cudaError_t AllocateNow(Place place, void** out, size_t size_bytes) {
  Process& process = Process::Get();
  if (const cudaError_t error = process.RefuseInCapture()) return error;
  *out = nullptr;
  if (size_bytes == 0) return cudaSuccess;
  return process.memory.Allocate(place, CurrentDevice(), false, size_bytes, out);
}

// After the work of the device, as the real runtime does.
cudaError_t FreeNow(Place place, void* data) {
  Process& process = Process::Get();
  if (!data) return cudaSuccess;
  if (const cudaError_t error = process.RefuseInCapture()) return error;
  const std::optional<Allocation> found = process.memory.Find(data);
  if (!found) return cudaErrorInvalidValue;
  process.SynchronizeDevice(found->device);
  return process.memory.Free(data, place);
}

bool IsDevice(const std::optional<Allocation>& memory) {
  return memory && memory->place == Place::kDevice;
}

bool FitsKind(cudaMemcpyKind kind, bool to_device, bool from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

// The rest of [pointer, ...) in its allocation is at least `size_bytes`.
bool Fits(const std::optional<Allocation>& memory, const void* pointer, size_t size_bytes) {
  if (!memory) return true;
  const auto* const byte = static_cast<const unsigned char*>(pointer);
  return size_bytes <= static_cast<size_t>(memory->data + memory->size_bytes - byte);
}

// Ordinary host memory is read before this returns, and was written when it returns.
cudaError_t Copy(void* target, const void* source, size_t size_bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  Process& process = Process::Get();
  if (size_bytes == 0) return cudaSuccess;
  const std::optional<Allocation> to = process.memory.Find(target);
  const std::optional<Allocation> from = process.memory.Find(source);
  if (!FitsKind(kind, IsDevice(to), IsDevice(from))) return cudaErrorInvalidValue;
  if (!Fits(to, target, size_bytes) || !Fits(from, source, size_bytes)) {
    return cudaErrorInvalidValue;
  }
  if ((!to || !from) && process.FailCapture(stream)) return cudaErrorStreamCaptureUnsupported;
  std::shared_ptr<std::vector<unsigned char>> staged;
  if (!from) {
    const auto* const bytes = static_cast<const unsigned char*>(source);
    staged = std::make_shared<std::vector<unsigned char>>(bytes, bytes + size_bytes);
  }
  const cudaError_t error = process.Submit(stream, [=] {
    std::memmove(target, staged ? staged->data() : source, size_bytes);
    return cudaSuccess;
  });
  return error != cudaSuccess || to ? error : process.Synchronize(stream);
}

cudaError_t Set(void* target, int value, size_t size_bytes, cudaStream_t stream) {
  Process& process = Process::Get();
  if (size_bytes == 0) return cudaSuccess;
  if (!process.memory.DeviceReaches(target, size_bytes)) return cudaErrorInvalidValue;
  return process.Submit(stream, [=] {
    std::memset(target, value, size_bytes);
    return cudaSuccess;
  });
}

cudaError_t AllocateAsync(int device, size_t size_bytes, cudaStream_t stream, void** out) {
  Process& process = Process::Get();
  if (size_bytes == 0 || !process.Find(stream)) return cudaErrorInvalidValue;
  // The real runtime records it.
  if (process.FailCapture(stream)) return cudaErrorStreamCaptureUnsupported;
  return process.memory.Allocate(Place::kDevice, device, true, size_bytes, out);
}

}  // namespace

cudaError_t cudaMalloc(void** out, size_t size_bytes) {
  EMULATED_CUDA_ENTER();
  return Leave(AllocateNow(Place::kDevice, out, size_bytes));
}

cudaError_t cudaFree(void* data) {
  EMULATED_CUDA_ENTER();
  return Leave(FreeNow(Place::kDevice, data));
}

cudaError_t cudaMallocHost(void** out, size_t size_bytes) {
  EMULATED_CUDA_ENTER();
  return Leave(AllocateNow(Place::kHost, out, size_bytes));
}

cudaError_t cudaHostAlloc(void** out, size_t size_bytes, unsigned) {
  EMULATED_CUDA_ENTER();
  return Leave(AllocateNow(Place::kHost, out, size_bytes));
}

cudaError_t cudaFreeHost(void* data) {
  EMULATED_CUDA_ENTER();
  return Leave(FreeNow(Place::kHost, data));
}

cudaError_t cudaHostGetDevicePointer(void** out, void* host, unsigned) {
  EMULATED_CUDA_ENTER();
  const std::optional<Allocation> found = Process::Get().memory.Find(host);
  if (!found || found->place != Place::kHost) return Leave(cudaErrorInvalidValue);
  *out = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  EMULATED_CUDA_ENTER();
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -2;
  attributes->hostPointer = const_cast<void*>(pointer);
  const std::optional<Allocation> found = Process::Get().memory.Find(pointer);
  if (!found) return cudaSuccess;
  attributes->device = found->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  const bool on_device = found->place == Place::kDevice;
  attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  if (on_device) attributes->hostPointer = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t size_bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  return Leave(Copy(target, source, size_bytes, kind, stream));
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t size_bytes, cudaMemcpyKind kind) {
  EMULATED_CUDA_ENTER();
  if (const cudaError_t error = Process::Get().RefuseInCapture()) return Leave(error);
  const cudaError_t error = Copy(target, source, size_bytes, kind, nullptr);
  return Leave(error != cudaSuccess ? error : Process::Get().Synchronize(nullptr));
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t size_bytes, cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  return Leave(Set(target, value, size_bytes, stream));
}

cudaError_t cudaMemset(void* target, int value, size_t size_bytes) {
  EMULATED_CUDA_ENTER();
  if (const cudaError_t error = Process::Get().RefuseInCapture()) return Leave(error);
  return Leave(Set(target, value, size_bytes, nullptr));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps* properties) {
  EMULATED_CUDA_ENTER();
  const int device = properties->location.id;
  if (properties->location.type != cudaMemLocationTypeDevice || device < 0 ||
      device >= Process::Get().device_count) {
    return Leave(cudaErrorInvalidValue);
  }
  *out = new CUmemPoolHandle_st{device};
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  EMULATED_CUDA_ENTER();
  delete pool;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* value) {
  EMULATED_CUDA_ENTER();
  return Leave(pool && value ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocFromPoolAsync(void** out, size_t size_bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  if (!pool) return Leave(cudaErrorInvalidValue);
  return Leave(AllocateAsync(pool->device, size_bytes, stream, out));
}

cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  EMULATED_CUDA_ENTER();
  Process& process = Process::Get();
  const std::optional<Allocation> found = process.memory.Find(data);
  if (!found || !found->from_pool || found->data != data) return Leave(cudaErrorInvalidValue);
  return Leave(process.Submit(
      stream, [data, &process] { return process.memory.Free(data, Place::kDevice); }));
}

int emulated_cuda_is_device_range(const void* pointer, size_t size_bytes) {
  return Process::Get().memory.DeviceReaches(pointer, size_bytes);
}
