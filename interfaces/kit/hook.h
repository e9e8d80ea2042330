// Parts to build a hook from. Compiled into the plugin that includes it and no part of the ABI: a
// hook may as well be written without it.
#pragma once

#include <cstdint>

#include "engine/device.h"
#include "engine/ext/wire_format.h"
#include "engine/host.h"
#include "engine/status.h"
#include "kit/accelerator.h"
#include "kit/create.h"

namespace engine::kit {

// Between float32 and a type of 16 bits, in host memory.
struct CastLoops {
  void (*narrow)(const float* source, uint16_t* target, int64_t count) noexcept;
  void (*widen)(const uint16_t* source, float* target, int64_t count) noexcept;
};

// Gradients that travel as `dtype`. On an accelerator, where `math` is its own, it converts.
class CastHook final : public WireHook {
 public:
  CastHook(DType dtype, const CastLoops& loops, FlatMath* math) noexcept
      : dtype_(dtype), loops_(loops), math_(math) {}

  WireTraits wire_traits() const noexcept override {
    return {.kind = WireKind::kCast, .dtype = dtype_};
  }
  Status Pack(const WireCall& call) noexcept override {
    if (math_ != nullptr) {
      return math_->Convert(call.gradient, DType::kFloat32, call.wire, dtype_, call.count,
                            call.stream);
    }
    loops_.narrow(call.gradient, static_cast<uint16_t*>(call.wire), call.count);
    return {};
  }
  Status Unpack(const WireCall& call) noexcept override {
    if (math_ != nullptr) {
      return math_->Convert(call.wire, dtype_, call.gradient, DType::kFloat32, call.count,
                            call.stream);
    }
    loops_.widen(static_cast<const uint16_t*>(call.wire), call.gradient, call.count);
    return {};
  }

 private:
  const DType dtype_;
  const CastLoops loops_;
  FlatMath* const math_;
};

inline Status MakeCastHook(Host& host, const char* name, DType dtype, const CastLoops& loops,
                           Object** out) noexcept {
  FlatMath* math = nullptr;
  ENGINE_RETURN_IF_ERROR(FindMath(host, name, &math));
  return Make<CastHook>(out, dtype, loops, math);
}

}  // namespace engine::kit
