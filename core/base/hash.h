// Hashes that are the same on every machine, for keys and digests that ranks compare. They keep
// accidents apart, not attackers.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "engine/dataset.h"

namespace engine::base {

constexpr uint64_t HashOf(std::initializer_list<uint64_t> words, uint64_t seed = 0) {
  uint64_t hash = MixBits(seed);
  for (const uint64_t word : words) hash = MixBits(hash ^ word);
  return hash;
}

constexpr uint64_t HashOf(std::string_view text, uint64_t seed = 0) {
  uint64_t hash = MixBits(seed);
  for (const char c : text) hash = MixBits(hash ^ static_cast<unsigned char>(c));
  return hash;
}

}  // namespace engine::base
