// The upper half of a float32, for tests: rounded to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

namespace engine::test {

inline uint16_t ToBFloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float FromBFloat16(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

}  // namespace engine::test
