// cast_bf16: gradients travel as bfloat16, half the bytes of float32: its 8 exponent bits, so
// nothing overflows that float32 can hold, and 8 bits of precision.
#include <cstdint>

#include "engine/plugin.h"
#include "kit/hook.h"

// The loops below are compiled for several instruction sets and the best one is taken at load time.
// Sanitizers cannot instrument that choice, which is made before they are set up.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CAST_CPU_VARIANTS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CAST_CPU_VARIANTS
#endif

namespace engine::cast_bf16 {
namespace {

// The upper half of a float32, rounded to nearest, ties to even; a NaN stays one. Integers only:
// the same bits from every instruction set.
CAST_CPU_VARIANTS void Narrow(const float* __restrict__ source, uint16_t* __restrict__ target,
                              int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, source[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    target[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
}

CAST_CPU_VARIANTS void Widen(const uint16_t* __restrict__ source, float* __restrict__ target,
                             int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    target[i] = __builtin_bit_cast(float, static_cast<uint32_t>(source[i]) << 16);
  }
}

Status Create(Host& host, const Options&, Object** out) noexcept {
  return kit::MakeCastHook(host, "cast_bf16", DType::kBFloat16, {Narrow, Widen}, out);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "cast_bf16",
                    .version = "1.0.0",
                    .kind = PluginKind::kHook,
                    .doc = "gradients travel as bfloat16: half the bytes, 8 bits of precision",
                    .create = Create},
                   NoOps(), NoOptions());

}  // namespace engine::cast_bf16
