#include "cuda_error.h"

namespace engine::cuda_ops {

Status ToStatus(cudaError_t error, const char* what) noexcept {
  if (error == cudaSuccess) return {};
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kDevice;
  return Status::Error(code, "%s: %s: %s", what, cudaGetErrorName(error),
                       cudaGetErrorString(error));
}

}  // namespace engine::cuda_ops
