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
constexpr int kSharedPerBlock = static_cast<int>(emulated_cuda::kMaxSharedBytes);
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
  properties->uuid.bytes[0] = static_cast<char>(device + 1);
  properties->totalGlobalMem = Memory::kDeviceBytes;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = kSharedPerBlock;
  properties->sharedMemPerMultiprocessor = kSharedPerBlock + 1024;
  properties->reservedSharedMemPerBlock = 1024;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = static_cast<int>(emulated_cuda::kWarpSize);
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  for (int i = 0; i < 3; ++i) {
    properties->maxThreadsDim[i] = i < 2 ? 1024 : 64;
    properties->maxGridSize[i] = i < 1 ? 2147483647 : 65535;
  }
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = kMultiprocessors;
  properties->l2CacheSize = 50 << 20;
  properties->asyncEngineCount = 3;
  properties->concurrentKernels = 1;
  properties->unifiedAddressing = 1;
  properties->canMapHostMemory = 1;
  properties->memoryPoolsSupported = 1;
  properties->streamPrioritiesSupported = 1;
  properties->pciBusID = device + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  EMULATED_CUDA_ENTER();
  if (!Exists(device)) return Leave(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      *value = 1024;
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = 64;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      *value = 65535;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 << 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kSharedPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedPerBlock + 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kMultiprocessors;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = 2048;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = 65536;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrPciBusId:
      *value = device + 1;
      break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrConcurrentKernels:
      *value = 1;
      break;
    default:
      *value = 0;
      break;
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
  return emulated_cuda::LastError(true);
}

cudaError_t cudaPeekAtLastError() {
  return emulated_cuda::LastError(false);
}
