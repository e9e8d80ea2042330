// Errors of the CUDA libraries as Status.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/status.h"

namespace engine::cuda_ops {

// OK, kResourceExhausted for memory, else kDevice: "<what>: <name of the error>: <its text>".
Status ToStatus(cudaError_t error, const char* what) noexcept;

}  // namespace engine::cuda_ops

// Returns from a function that gives a Status, unless `expression`, a cudaError_t, is a success.
#define CUDA_OPS_RETURN_IF_ERROR(expression, what)                                                \
  do {                                                                                            \
    const cudaError_t cuda_ops_error = (expression);                                              \
    if (cuda_ops_error != cudaSuccess) return ::engine::cuda_ops::ToStatus(cuda_ops_error, what); \
  } while (false)
