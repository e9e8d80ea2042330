// A libcuda.so.1 that sees no device: with it the real cuDNN plans for devices that are described
// to it. It remembers the kernels that cuDNN looks up; every function but these does nothing.
#include "tests/cuda_build/cudnn/fake_libcuda.h"

#include <string>

namespace {

std::string& LastKernel() {
  static std::string name;
  return name;
}

}  // namespace

const char* FakeLibcudaLastKernel() {
  return LastKernel().c_str();
}

extern "C" {

int cuInit(unsigned) {
  return 100;  // CUDA_ERROR_NO_DEVICE
}

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}

int cuLibraryLoadData(const void** library, const void* code) {
  *library = code;
  return 0;
}

int cuLibraryGetKernel(const void** kernel, const void* library, const char* name) {
  LastKernel() = name;
  *kernel = library;
  return 0;
}

#define FAKE_FUNCTION(name) \
  int name() {              \
    return 0;               \
  }
FAKE_FUNCTION(cuCtxGetCurrent)
FAKE_FUNCTION(cuCtxGetLimit)
FAKE_FUNCTION(cuCtxPopCurrent)
FAKE_FUNCTION(cuCtxPushCurrent)
FAKE_FUNCTION(cuDeviceGet)
FAKE_FUNCTION(cuDeviceGetCount)
FAKE_FUNCTION(cuGetErrorName)
FAKE_FUNCTION(cuGetErrorString)
FAKE_FUNCTION(cuKernelGetAttribute)
FAKE_FUNCTION(cuKernelSetAttribute)
FAKE_FUNCTION(cuLaunchCooperativeKernel)
FAKE_FUNCTION(cuLaunchKernel)
FAKE_FUNCTION(cuLaunchKernelEx)
FAKE_FUNCTION(cuLibraryLoadFromFile)
FAKE_FUNCTION(cuLibraryUnload)
FAKE_FUNCTION(cuLinkAddData)
FAKE_FUNCTION(cuLinkComplete)
FAKE_FUNCTION(cuLinkCreate)
FAKE_FUNCTION(cuLinkDestroy)
FAKE_FUNCTION(cuOccupancyMaxPotentialClusterSize)
FAKE_FUNCTION(cuStreamGetCtx)

}  // extern "C"
