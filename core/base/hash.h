// Hashes that are the same on every machine, for keys and digests that ranks compare. They keep
// accidents apart, not attackers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace engine::base {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every input bit.
constexpr uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t HashOf(std::initializer_list<uint64_t> words, uint64_t seed = 0) {
  uint64_t hash = Mix(seed);
  for (const uint64_t word : words) hash = Mix(hash ^ word);
  return hash;
}

constexpr uint64_t HashOf(std::string_view text, uint64_t seed = 0) {
  uint64_t hash = Mix(seed);
  for (const char c : text) hash = Mix(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace engine::base
