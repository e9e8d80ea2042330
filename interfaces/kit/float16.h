// The 16-bit formats of DType as numbers. Rounded to nearest, ties to even; a NaN stays one and
// keeps what fits of its bits, as with the instructions of processors.
//
// No branches, so that loops over them vectorise; always inlined, so that files which are compiled
// for different instruction sets share no copy.
#pragma once

#include <cstdint>

namespace engine::kit {

#define ENGINE_FLOAT16_FUNCTION [[gnu::always_inline]] inline

ENGINE_FLOAT16_FUNCTION uint32_t BitsOf(float x) noexcept {
  return __builtin_bit_cast(uint32_t, x);
}
ENGINE_FLOAT16_FUNCTION float FloatOf(uint32_t bits) noexcept {
  return __builtin_bit_cast(float, bits);
}

// bfloat16: the upper half of a float32.
ENGINE_FLOAT16_FUNCTION float FromBFloat16(uint16_t x) noexcept {
  return FloatOf(uint32_t{x} << 16);
}

ENGINE_FLOAT16_FUNCTION uint16_t ToBFloat16(float x) noexcept {
  const uint32_t bits = BitsOf(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;
  return static_cast<uint16_t>(x != x ? quiet : rounded);
}

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
ENGINE_FLOAT16_FUNCTION float FromFloat16(uint16_t x) noexcept {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = (x >> 10) & 31, fraction = x & 0x3ff;
  // Zero and subnormals are multiples of 2^-24.
  const uint32_t small = BitsOf(static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-24f);
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  const uint32_t normal = wide_exponent << 23 | fraction << 13;
  return FloatOf(sign | (exponent == 0 ? small : normal));
}

ENGINE_FLOAT16_FUNCTION uint16_t ToFloat16(float x) noexcept {
  const uint32_t bits = BitsOf(x);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  const uint32_t normal =
      ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - ((127 - 15) << 10);
  // Floats from 0.5 to 1 are 2^-24 apart, as subnormals here: the addition rounds to one of them.
  const uint32_t small = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000;
  uint32_t result = magnitude < 0x38800000 ? small : normal;  // below 2^-14
  result = magnitude >= 0x477ff000 ? 0x7c00 : result;         // from 65520 on: infinity
  result = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : result;
  return static_cast<uint16_t>(sign | result);
}

#undef ENGINE_FLOAT16_FUNCTION

}  // namespace engine::kit
