// Errors of the CUDA runtime as Status. This folder is no plugin: what the plugins for NVIDIA GPUs
// compile in, each for itself.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/status.h"

namespace engine::cuda_kit {

// OK, kResourceExhausted for memory, else kDevice: "<what>: <name of the error>: <its text>".
inline Status ToStatus(cudaError_t error, const char* what) noexcept {
  if (error == cudaSuccess) return {};
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kDevice;
  return Status::Error(code, "%s: %s: %s", what, cudaGetErrorName(error),
                       cudaGetErrorString(error));
}

}  // namespace engine::cuda_kit
