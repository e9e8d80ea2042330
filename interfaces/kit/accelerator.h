// Parts for plugins that work in host memory and in that of an accelerator. Compiled into the
// plugin that includes it and no part of the ABI.
#pragma once

#include <cstring>
#include <span>

#include "engine/ext/accelerator.h"
#include "engine/host.h"
#include "engine/optimizer.h"
#include "engine/status.h"

namespace engine::kit {

// The accelerator that the ops run on, or null if they do not run on one. [any-thread]
inline Accelerator* AcceleratorOf(const Host& host) noexcept {
  Device* const device = host.device();
  return device ? Query<Accelerator>(*device) : nullptr;
}

// *math = the arithmetic of the accelerator, or null where data are host memory. kUnsupported for
// plugin `name` on a device that is neither.
inline Status FindMath(const Host& host, const char* name, FlatMath** math) noexcept {
  *math = nullptr;
  if (Accelerator* const accelerator = AcceleratorOf(host)) {
    *math = &accelerator->math();
    return {};
  }
  const Device* const device = host.device();
  if (!device || std::strcmp(device->type(), "cpu") == 0) return {};
  return Status::Error(
      StatusCode::kUnsupported,
      "%s works in CPU memory, but the ops run on '%s', which has no arithmetic on "
      "flat arrays: choose a plugin for that device",
      name, device->type());
}

// *kernel = the kernel `name` of the accelerator, or null where data are host memory. kUnsupported
// for `plugin` as in FindMath, and where the device has no such kernel.
inline Status FindKernel(const Host& host, const char* plugin, const char* name,
                         FlatKernel** kernel) noexcept {
  *kernel = nullptr;
  FlatMath* math = nullptr;
  ENGINE_RETURN_IF_ERROR(FindMath(host, plugin, &math));
  if (!math || (*kernel = math->FindKernel(name))) return {};
  return Status::Error(StatusCode::kUnsupported,
                       "%s needs the kernel '%s', which the device '%s' of the ops does not have: "
                       "choose ops that have it, or another plugin",
                       plugin, name, host.device()->type());
}

// What a kernel that updates parameters finds in FlatSpan::arrays and FlatSpan::numbers. Its
// FlatCall::numbers are the optimizer's.
enum UpdateArray { kValue, kGradient, kGradientScale, kValueBf16, kState0, kState1 };
enum UpdateNumber { kLearningRateScale, kWeightDecay };

// The updates of `calls`, as many at once as there is room for here; `weight_decay` is the
// optimizer's own. All calls are of one stream.
inline Status UpdateInParts(FlatKernel& kernel, std::span<const float> numbers,
                            Array<const UpdateCall> calls, float weight_decay) noexcept {
  constexpr size_t kSpans = 64;
  FlatSpan spans[kSpans];
  while (!calls.empty()) {
    size_t count = 0;
    for (; count < kSpans && count < calls.size(); ++count) {
      const UpdateCall& call = calls[count];
      if (call.scalars != calls[0].scalars) break;
      spans[count] = {
          .arrays = {call.value, const_cast<float*>(call.gradient),
                     const_cast<float*>(call.device_scale), call.value_bf16, call.states[0],
                     call.states[1]},
          .count = call.count,
          .numbers = {call.learning_rate_scale, weight_decay * call.weight_decay_scale}};
    }
    ENGINE_RETURN_IF_ERROR(kernel.Run({.spans = {spans, count},
                                       .numbers = numbers,
                                       .scalars = calls[0].scalars,
                                       .stream = calls[0].stream}));
    calls = calls.subspan(count);
  }
  return {};
}

}  // namespace engine::kit
