// An accelerator whose work is done at once, in host memory, and that allocates nothing.
#pragma once

#include "engine/ext/accelerator.h"
#include "tests/unit/exec/rig.h"

namespace engine::test {

class PromptAccelerator : public HostDevice,
                          public AcceleratorBase,
                          public FlatMathBase,
                          public FlatKernelBase {
 public:
  void* Query(std::string_view id) noexcept override { return Offer<Accelerator>(id, this); }
  Status CreateEvent(Event** out) noexcept override {
    *out = new PromptEvent;
    return {};
  }

 private:
  class PromptEvent final : public EventBase {
    Status WaitHost(int64_t) noexcept override { return {}; }
    void* native() noexcept override { return nullptr; }
  };

  int32_t ordinal() const noexcept override { return 0; }
  FlatMath& math() noexcept override { return *this; }
  Status AllocateHost(size_t size_bytes, void** out) noexcept override {
    return HostDevice::Allocate(size_bytes, out);
  }
  void FreeHost(void* memory) noexcept override { HostDevice::Free(memory); }
  Status BeginRecording(Stream*) noexcept override { return {}; }
  Status EndRecording(Stream*, Recording**) noexcept override { return {}; }
  Status Fault() noexcept override { return {}; }

  FlatKernel* FindKernel(std::string_view) noexcept override { return this; }
  Status Run(const FlatCall&) noexcept override { return {}; }
  Status FillQuotient(const float*, float, float*, int64_t, Stream*) noexcept override {
    return {};
  }
  Status Convert(const void*, DType, void*, DType, int64_t, Stream*) noexcept override {
    return {};
  }
  Status Add(float*, const float*, int64_t, Stream*) noexcept override { return {}; }
};

}  // namespace engine::test
