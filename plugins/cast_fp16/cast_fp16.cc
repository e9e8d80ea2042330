// cast_fp16: gradients travel as IEEE 754 binary16, half the bytes of float32: 11 bits of precision
// from 2^-14 to 65504. What travels is the sum over the samples of a rank, and the communicator
// adds up ranks: a sum of 65520 or more becomes infinite, and with it the loss of the next step,
// which ends the run; what is below 2^-25 is lost.
#include <cstdint>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kit/float16.h"
#include "kit/hook.h"
#include "kit/target_clones.h"

namespace engine::cast_fp16 {
namespace {

ENGINE_TARGET_CLONES void NarrowPortably(const float* __restrict__ source,
                                         uint16_t* __restrict__ target, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) target[i] = kit::ToFloat16(source[i]);
}

ENGINE_TARGET_CLONES void WidenPortably(const uint16_t* __restrict__ source,
                                        float* __restrict__ target, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) target[i] = kit::FromFloat16(source[i]);
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

StatusValue Create(Host& host, const Options&, Object** out) noexcept {
  return kit::MakeCastHook(host, "cast_fp16", DType::kFloat16, BestLoops(), out);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    kit::DescribePlugin(PluginKind::kHook, "cast_fp16", "1.0.0",
                        "gradients travel as float16: half the bytes, sums up to 65504", Create);

}  // namespace engine::cast_fp16
