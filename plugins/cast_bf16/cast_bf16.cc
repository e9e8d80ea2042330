// cast_bf16: gradients travel as bfloat16, half the bytes of float32: its 8 exponent bits, so
// nothing overflows that float32 can hold, and 8 bits of precision.
#include <cstdint>

#include "kit/float16.h"
#include "kit/hook.h"
#include "kit/target_clones.h"

namespace engine::cast_bf16 {
namespace {

// The same bits from every instruction set.
ENGINE_TARGET_CLONES void Narrow(const float* __restrict__ source, uint16_t* __restrict__ target,
                                 int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) target[i] = kit::ToBFloat16(source[i]);
}

ENGINE_TARGET_CLONES void Widen(const uint16_t* __restrict__ source, float* __restrict__ target,
                                int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) target[i] = kit::FromBFloat16(source[i]);
}

StatusValue Create(Host& host, const Options&, Object** out) noexcept {
  return kit::MakeCastHook(host, "cast_bf16", DType::kBFloat16, {Narrow, Widen}, out);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kHook, "cast_bf16", "1.0.0",
    "gradients travel as bfloat16: half the bytes, 8 bits of precision", Create);

}  // namespace engine::cast_bf16
