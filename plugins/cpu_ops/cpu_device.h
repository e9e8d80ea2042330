// The CPU as a device: host memory, and streams that are only tokens, as work is done when its call
// returns.
#pragma once

#include <cstddef>

#include "engine/device.h"

namespace engine::cpu_ops {

// No state: any thread may call any function.
class CpuDevice final : public DeviceBase {
 public:
  const char* type() const noexcept override { return "cpu"; }
  Status Allocate(size_t size_bytes, void** out) noexcept override;
  void Free(void* memory) noexcept override;
  Status Copy(void* target, const void* source, size_t size_bytes,
              Stream* stream) noexcept override;
  Status Zero(void* target, size_t size_bytes, Stream* stream) noexcept override;
  Status CreateStream(Stream** out) noexcept override;
  Status CreateEvent(Event** out) noexcept override;
};

}  // namespace engine::cpu_ops
