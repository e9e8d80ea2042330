// Random bits as a function of numbers: no state, so any sample can be made by any rank at any
// time.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace engine {

// A bijection of 64 bits in which each input bit changes about half of the output bits: the
// finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators,
// 2014).
constexpr uint64_t MixBits(uint64_t bits) noexcept {
  bits += 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

constexpr uint64_t RandomBits(std::initializer_list<uint64_t> keys) noexcept {
  uint64_t bits = 0;
  for (uint64_t key : keys) bits = MixBits(bits ^ key);
  return bits;
}

}  // namespace engine
