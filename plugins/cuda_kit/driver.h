// What a machine needs before a plugin can use its GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>

#include "engine/status.h"

namespace engine::cuda_kit {

// 13000 -> "13.0"
struct VersionText {
  char text[16];
  explicit VersionText(int version) noexcept {
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
  }
};

// Of the driver and of the runtime, as far as they are there.
struct Versions {
  int driver = 0, runtime = 0;

  Versions() noexcept {
    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
  }
};

// How many GPUs there are. kPlugin with one sentence unless there is a driver that the runtime can
// use, and a device: `plugin` needs them, and works where one of the plugins in `others` is chosen.
inline Status CountDevices(const char* plugin, const char* others, int* count) noexcept {
  const Versions versions;
  const VersionText driver(versions.driver), runtime(versions.runtime);
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error == cudaSuccess && *count > 0) return {};
  (void)cudaGetLastError();
  if (error == cudaErrorStubLibrary) {
    return Status::Error(StatusCode::kPlugin,
                         "%s found the stub of the NVIDIA driver that is meant for linking only: "
                         "take the folder 'stubs' out of the library path",
                         plugin);
  }
  if (versions.driver == 0) {
    return Status::Error(StatusCode::kPlugin,
                         "%s needs an NVIDIA driver for CUDA %s, and this machine has no driver: "
                         "install the driver, or choose %s",
                         plugin, runtime.text, others);
  }
  if (error == cudaErrorInsufficientDriver) {
    return Status::Error(StatusCode::kPlugin,
                         "%s needs an NVIDIA driver for CUDA %s, but the one here is for CUDA %s: "
                         "update the driver, or choose %s",
                         plugin, runtime.text, driver.text, others);
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return Status::Error(StatusCode::kPlugin,
                         "%s found a driver for CUDA %s but no GPU: look at CUDA_VISIBLE_DEVICES "
                         "and nvidia-smi, or choose %s",
                         plugin, driver.text, others);
  }
  return Status::Error(StatusCode::kPlugin,
                       "%s cannot use the GPUs of this machine: %s: %s; look at nvidia-smi, or "
                       "choose %s",
                       plugin, cudaGetErrorName(error), cudaGetErrorString(error), others);
}

}  // namespace engine::cuda_kit
