// cast_fp16: gradients travel as IEEE 754 binary16, half the bytes of float32: 11 bits of precision
// from 2^-14 to 65504. What travels is the sum over the samples of a rank, and the communicator
// adds up ranks: a sum of 65520 or more becomes infinite, and with it the loss of the next step,
// which ends the run; what is below 2^-25 is lost.
#include <cstdint>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "engine/plugin.h"
#include "kit/hook.h"

// As in every plugin with such loops: the best instruction set is taken at load time, but not under
// sanitizers, which cannot instrument that choice.
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CAST_CPU_VARIANTS __attribute__((target_clones("avx2", "default")))
#else
#define CAST_CPU_VARIANTS
#endif

namespace engine::cast_fp16 {
namespace {

// 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits. Rounded to nearest, ties to even; a NaN
// stays one.
CAST_CPU_VARIANTS void NarrowPortably(const float* __restrict__ source,
                                      uint16_t* __restrict__ target, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, source[i]);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal =
        ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - ((127 - 15) << 10);
    // Floats from 0.5 to 1 are 2^-24 apart, as subnormals here: the addition rounds to one of them.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    const uint32_t small = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000;
    uint32_t half = magnitude < 0x38800000 ? small : normal;  // below 2^-14
    half = magnitude >= 0x477ff000 ? 0x7c00 : half;           // from 65520 on: infinity
    half = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : half;
    target[i] = static_cast<uint16_t>((bits >> 16 & 0x8000) | half);
  }
}

CAST_CPU_VARIANTS void WidenPortably(const uint16_t* __restrict__ source,
                                     float* __restrict__ target, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t half = source[i];
    const uint32_t exponent = half >> 10 & 31, fraction = half & 0x3ff;
    // Zero and subnormals are multiples of 2^-24.
    const float small = static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-24f;
    const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
    const uint32_t magnitude =
        exponent == 0 ? __builtin_bit_cast(uint32_t, small) : wide_exponent << 23 | fraction << 13;
    target[i] = __builtin_bit_cast(float, (half & 0x8000) << 16 | magnitude);
  }
}

// The same values from the instructions that are there for it.
#ifdef __x86_64__
constexpr __mmask16 kAll = 0xffff;  // of GCC 12's intrinsics those without a mask warn

__attribute__((target("avx512f"))) void NarrowWithAvx512(const float* source, uint16_t* target,
                                                         int64_t count) noexcept {
  constexpr int64_t kLanes = 16;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i halves =
        _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + i), halves);
  }
  NarrowPortably(source + i, target + i, count - i);
}

__attribute__((target("avx512f"))) void WidenWithAvx512(const uint16_t* source, float* target,
                                                        int64_t count) noexcept {
  constexpr int64_t kLanes = 16;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    _mm512_storeu_ps(target + i, _mm512_maskz_cvtph_ps(kAll, halves));
  }
  WidenPortably(source + i, target + i, count - i);
}
#endif

kit::CastLoops BestLoops() noexcept {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {NarrowWithAvx512, WidenWithAvx512};
#endif
  return {NarrowPortably, WidenPortably};
}

Status Create(Host& host, const Options&, Object** out) noexcept {
  return kit::MakeCastHook(host, "cast_fp16", DType::kFloat16, BestLoops(), out);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "cast_fp16",
                    .version = "1.0.0",
                    .kind = PluginKind::kHook,
                    .doc = "gradients travel as float16: half the bytes, sums up to 65504",
                    .create = Create},
                   NoOps(), NoOptions());

}  // namespace engine::cast_fp16
