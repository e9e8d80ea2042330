#include "cudnn_library.h"

#include <dlfcn.h>

#include <cstdio>

namespace engine::cuda_ops {
namespace {

constexpr size_t kMajor = 9;
static_assert(CUDNN_MAJOR == kMajor, "the functions are declared as in version 9");

// "9.19.0" of 91900, "8.9.7" of 8907: a major version was 1000 before it was 10000.
struct VersionText {
  char text[32];

  explicit VersionText(size_t version) noexcept {
    const size_t major = version < 10000 ? 1000 : 10000;
    snprintf(text, sizeof text, "%zu.%zu.%zu", version / major, version % major / 100,
             version % 100);
  }
};

}  // namespace

Cudnn::~Cudnn() {
  if (handle_ != nullptr) functions_.cudnnDestroy(handle_);
}

Status Cudnn::Load() noexcept {
  if (functions_.cudnnGetVersion != nullptr) return {};
  // Never closed: what it has registered with the runtime would be left behind.
  void* const library = dlopen(library_, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status::Error(StatusCode::kPlugin,
                         "needs cuDNN %zu (%s), which cannot be loaded: %s; install cuDNN %zu "
                         "for CUDA %d, or put its folder on LD_LIBRARY_PATH",
                         kMajor, library_, dlerror(), kMajor, CUDART_VERSION / 1000);
  }
  const auto missing = [&](const char* name) {
    return Status::Error(StatusCode::kPlugin,
                         "needs cuDNN %zu: %s has no function %s; install another one", kMajor,
                         library_, name);
  };
#define CUDA_OPS_CUDNN_LOAD(name)                                                       \
  functions_.name = reinterpret_cast<decltype(functions_.name)>(dlsym(library, #name)); \
  if (functions_.name == nullptr) return missing(#name);
  CUDA_OPS_CUDNN_LOAD(cudnnGetVersion)  // first: it explains what else may be missing
  const size_t version = functions_.cudnnGetVersion();
  if (version / 10000 != kMajor) {
    return Status::Error(StatusCode::kPlugin,
                         "needs cuDNN %zu; %s is version %s: install a version %zu", kMajor,
                         library_, VersionText(version).text, kMajor);
  }
  CUDA_OPS_CUDNN_FUNCTIONS(CUDA_OPS_CUDNN_LOAD)
#undef CUDA_OPS_CUDNN_LOAD
  return {};
}

Status Cudnn::CheckVersion(size_t version) const noexcept {
  const size_t found = functions_.cudnnGetVersion();
  if (found >= version) return {};
  return Status::Error(StatusCode::kPlugin, "needs cuDNN %s or later; %s is version %s",
                       VersionText(version).text, library_, VersionText(found).text);
}

Status Cudnn::Open() noexcept {
  if (handle_ != nullptr) return {};
  ENGINE_RETURN_IF_ERROR(Load());
  cudnnHandle_t handle = nullptr;
  ENGINE_RETURN_IF_ERROR(ToStatus(functions_.cudnnCreate(&handle), "starting cuDNN"));
  handle_ = handle;
  return {};
}

Status Cudnn::Use(cudaStream_t stream) noexcept {
  return ToStatus(functions_.cudnnSetStream(handle_, stream), "giving cuDNN a stream");
}

Status Cudnn::ToStatus(cudnnStatus_t status, const char* what) const noexcept {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  return Status::Error(StatusCode::kDevice, "%s: %s", what, functions_.cudnnGetErrorString(status));
}

}  // namespace engine::cuda_ops
