// Parts for plugins that work in host memory and in that of an accelerator. Compiled into the
// plugin that includes it and no part of the ABI.
#pragma once

#include <cstdint>
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
  return device ? static_cast<Accelerator*>(device->Query(kAcceleratorId)) : nullptr;
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

// The updates of `calls`, as many at once as there is room for here; `weight_decay` is the
// optimizer's own. All calls are of one stream.
inline Status UpdateInParts(FlatMath& math, const UpdateRule& rule,
                            std::span<const UpdateCall> calls, float weight_decay) noexcept {
  constexpr size_t kSpans = 64;
  UpdateSpan spans[kSpans];
  while (!calls.empty()) {
    size_t count = 0;
    for (; count < kSpans && count < calls.size(); ++count) {
      const UpdateCall& call = calls[count];
      if (call.scalars != calls[0].scalars) break;
      spans[count] = {.value = call.value,
                      .gradient = call.gradient,
                      .states = {call.states[0], call.states[1]},
                      .value_bf16 = call.value_bf16,
                      .gradient_scale = call.device_scale,
                      .count = call.count,
                      .learning_rate_scale = call.learning_rate_scale,
                      .weight_decay = weight_decay * call.weight_decay_scale};
    }
    ENGINE_RETURN_IF_ERROR(math.Update({spans, count}, rule, calls[0].scalars, calls[0].stream));
    calls = calls.subspan(count);
  }
  return {};
}

}  // namespace engine::kit
