// Devices, versions and errors.
#include <cstdio>
#include <cstring>

#include "tests/emulated_cuda/cudart/process.h"

using emulated_cuda::CurrentDevice;
using emulated_cuda::EnterWithoutDevice;
using emulated_cuda::Leave;
using emulated_cuda::Memory;
using emulated_cuda::Process;

namespace {

// Few, so that a grid that is made as large as the device stays small.
constexpr int kMultiprocessors = 4;
constexpr int kDriverVersion = 13000;

bool Exists(int device) {
  return device >= 0 && device < Process::Get().device_count;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t fault = EnterWithoutDevice(__func__)) return Leave(fault);
  *count = Process::Get().device_count;
  return Leave(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (const cudaError_t fault = EnterWithoutDevice(__func__)) return Leave(fault);
  *version = kDriverVersion;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (const cudaError_t fault = EnterWithoutDevice(__func__)) return Leave(fault);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  EMULATED_CUDA_ENTER();
  if (!Exists(device)) return Leave(cudaErrorInvalidDevice);
  CurrentDevice() = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  EMULATED_CUDA_ENTER();
  *device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  EMULATED_CUDA_ENTER();
  if (!Exists(device)) return Leave(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::snprintf(properties->name, sizeof properties->name, "Emulated GPU (no hardware)");
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = kMultiprocessors;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  EMULATED_CUDA_ENTER();
  if (!Exists(device)) return Leave(cudaErrorInvalidDevice);
  if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) {
    *value = static_cast<int>(emulated_cuda::kMaxSharedBytes);
  } else if (attribute == cudaDevAttrMultiProcessorCount) {
    *value = kMultiprocessors;
  } else {
    return Leave(cudaErrorInvalidValue);  // nobody has asked for it yet
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  EMULATED_CUDA_ENTER();
  if (const cudaError_t error = Process::Get().RefuseInCapture()) return Leave(error);
  return Leave(Process::Get().SynchronizeDevice(CurrentDevice()));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  EMULATED_CUDA_ENTER();
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return emulated_cuda::LastError();
}
