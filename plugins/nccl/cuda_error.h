// Errors of the CUDA runtime as Status.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/status.h"

namespace engine::nccl {

// OK, kResourceExhausted for memory, else kDevice: "<what>: <name of the error>: <its text>".
Status ToStatus(cudaError_t error, const char* what) noexcept;

}  // namespace engine::nccl
