// cuDNN 9, opened at run time: only convolutions need it, and where it is missing everything else
// works; attention takes it where it is there.
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "engine/status.h"

namespace engine::cuda_ops {

// The functions in use. All of them are in every 9.x.
#define CUDA_OPS_CUDNN_FUNCTIONS(APPLY) \
  APPLY(cudnnGetVersion)                \
  APPLY(cudnnGetErrorString)            \
  APPLY(cudnnGetLastErrorString)        \
  APPLY(cudnnCreate)                    \
  APPLY(cudnnDestroy)                   \
  APPLY(cudnnSetStream)                 \
  APPLY(cudnnBackendCreateDescriptor)   \
  APPLY(cudnnBackendDestroyDescriptor)  \
  APPLY(cudnnBackendSetAttribute)       \
  APPLY(cudnnBackendGetAttribute)       \
  APPLY(cudnnBackendFinalize)           \
  APPLY(cudnnBackendExecute)

struct CudnnFunctions {
#define CUDA_OPS_CUDNN_MEMBER(name) decltype(&::name) name = nullptr;
  CUDA_OPS_CUDNN_FUNCTIONS(CUDA_OPS_CUDNN_MEMBER)
#undef CUDA_OPS_CUDNN_MEMBER
};

// The library and a handle, for the ops of one device: they are called by one thread at a time.
// The library stays loaded when this is gone.
class Cudnn {
 public:
  explicit Cudnn(const char* library = "libcudnn.so.9") noexcept : library_(library) {}
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  // Loads the library, unless that is done. kPlugin: which library and version is wanted, what was
  // found and what to do.
  Status Load() noexcept;
  // The same, and a handle for the current device. kDevice when the library cannot be used.
  Status Open() noexcept;

  // After Load.
  const CudnnFunctions& functions() const noexcept { return functions_; }
  cudnnHandle_t handle() const noexcept { return handle_; }  // after Open
  // kPlugin unless the library is at least `version` (91600: 9.16.0).
  Status CheckVersion(size_t version) const noexcept;
  // Work that the handle is given from now on is queued on `stream`.
  Status Use(cudaStream_t stream) noexcept;

  // OK, or kDevice: "<what>: <cuDNN's words>".
  Status ToStatus(cudnnStatus_t status, const char* what) const noexcept;

 private:
  const char* const library_;  // static lifetime
  CudnnFunctions functions_;
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace engine::cuda_ops
