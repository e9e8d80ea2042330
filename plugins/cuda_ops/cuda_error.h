// Errors of the CUDA libraries as Status.
#pragma once

#include "cuda_kit/error.h"

namespace engine::cuda_ops {

using cuda_kit::ToStatus;

}  // namespace engine::cuda_ops

// Returns from a function that gives a Status, unless `expression`, a cudaError_t, is a success.
#define CUDA_OPS_RETURN_IF_ERROR(expression, what)                                                \
  do {                                                                                            \
    const cudaError_t cuda_ops_error = (expression);                                              \
    if (cuda_ops_error != cudaSuccess) return ::engine::cuda_ops::ToStatus(cuda_ops_error, what); \
  } while (false)
