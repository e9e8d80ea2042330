// Parts to build a hook from. Compiled into the plugin that includes it and no part of the ABI: a
// hook may as well be written without it.
#pragma once

#include <cstring>
#include <new>

#include "engine/device.h"
#include "engine/host.h"
#include "engine/status.h"

namespace engine::kit {

// *out = a Hook made of `args`, for a hook called `name` that works in CPU memory: kUnsupported
// when the ops of the run do not, kResourceExhausted without memory.
template <typename Hook, typename... Args>
Status MakeCpuHook(Host& host, const char* name, Object** out, const Args&... args) noexcept {
  if (const Device* device = host.device(); device && std::strcmp(device->type(), "cpu") != 0) {
    return Status::Error(StatusCode::kUnsupported,
                         "%s works in CPU memory, but the ops run on '%s': choose a hook for that "
                         "device",
                         name, device->type());
  }
  *out = new (std::nothrow) Hook(args...);
  if (*out) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for a hook");
}

}  // namespace engine::kit
