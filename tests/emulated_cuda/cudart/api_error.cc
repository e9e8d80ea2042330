// Names of the errors that the emulated runtime gives or tests ask for. The texts of the real runtime
// are longer; only some of them are the same here.
#include <cuda_runtime_api.h>

namespace {

struct ErrorName {
  cudaError_t error;
  const char* name;
  const char* text;
};

#define EMULATED_CUDA_ERROR(error, text) \
  { error, #error, text }
constexpr ErrorName kErrors[] = {
    EMULATED_CUDA_ERROR(cudaSuccess, "no error"),
    EMULATED_CUDA_ERROR(cudaErrorInvalidValue, "invalid argument"),
    EMULATED_CUDA_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    EMULATED_CUDA_ERROR(cudaErrorCudartUnloading, "driver shutting down"),
    EMULATED_CUDA_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    EMULATED_CUDA_ERROR(cudaErrorInsufficientDriver,
                        "CUDA driver version is insufficient for CUDA runtime version"),
    EMULATED_CUDA_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    EMULATED_CUDA_ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    EMULATED_CUDA_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    EMULATED_CUDA_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    EMULATED_CUDA_ERROR(cudaErrorIllegalState, "illegal state"),
    EMULATED_CUDA_ERROR(cudaErrorNotReady, "device not ready"),
    EMULATED_CUDA_ERROR(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    EMULATED_CUDA_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    EMULATED_CUDA_ERROR(cudaErrorStreamCaptureUnsupported, "stream capture unsupported"),
    EMULATED_CUDA_ERROR(cudaErrorStreamCaptureInvalidated, "stream capture invalidated"),
    EMULATED_CUDA_ERROR(cudaErrorStreamCaptureMerge, "stream capture merge"),
    EMULATED_CUDA_ERROR(cudaErrorStreamCaptureUnmatched, "stream capture unmatched"),
    EMULATED_CUDA_ERROR(cudaErrorStreamCaptureUnjoined, "stream capture unjoined"),
    EMULATED_CUDA_ERROR(cudaErrorStreamCaptureIsolation, "stream capture isolation"),
    EMULATED_CUDA_ERROR(cudaErrorCapturedEvent, "captured event"),
    EMULATED_CUDA_ERROR(cudaErrorStreamCaptureWrongThread, "stream capture wrong thread"),
};
#undef EMULATED_CUDA_ERROR

const ErrorName* Find(cudaError_t error) {
  for (const ErrorName& known : kErrors) {
    if (known.error == error) return &known;
  }
  return nullptr;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorName* const found = Find(error);
  return found ? found->name : "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorName* const found = Find(error);
  return found ? found->text : "unrecognized error code";
}
