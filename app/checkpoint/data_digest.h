// The digest of a safetensors file, to which its parts add up in any order, whoever writes or reads them:
//
//   digest = sum of XXH3-128(block, seed = its place), each half modulo 2^64, over
//   block  = kBlockBytes of a tensor from its beginning, or of the header; the last of each may be less
//   place  = where the block begins in the data; of the header, the same in it + kHeaderPlace
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "kit/digest.h"

namespace engine::checkpoint {

class DataDigest {
 public:
  // What ranks own of a tensor begins at multiples of it: exec::kAlignElements.
  static constexpr size_t kBlockBytes = 64;
  static constexpr uint64_t kHeaderPlace = uint64_t{1} << 63;

  // Of a tensor, or from one of its blocks on.
  void Add(uint64_t place, const void* data, size_t size_bytes) noexcept {
    const auto* const bytes = static_cast<const uint8_t*>(data);
    size_t at = 0;
    for (; at + kBlockBytes <= size_bytes; at += kBlockBytes) {
      Add(XXH3_128bits_withSeed(bytes + at, kBlockBytes, place + at));
    }
    if (at < size_bytes) Add(XXH3_128bits_withSeed(bytes + at, size_bytes - at, place + at));
  }

  // What another has added, as its Text says; false: it is none.
  bool Add(const std::string& text) {
    XXH128_hash_t sum{};
    if (std::sscanf(text.c_str(), "xxh3_128_sum:%16" SCNx64 "%16" SCNx64, &sum.high64,
                    &sum.low64) != 2) {
      return false;
    }
    Add(sum);
    return true;
  }

  // "xxh3_128_sum:" and 32 hexadecimal digits, most significant first.
  std::string Text() const {
    char text[48];
    std::snprintf(text, sizeof text, "xxh3_128_sum:%016" PRIx64 "%016" PRIx64,
                  uint64_t{sum_.high64}, uint64_t{sum_.low64});
    return text;
  }

 private:
  void Add(XXH128_hash_t hash) noexcept {
    sum_.low64 += hash.low64;
    sum_.high64 += hash.high64;
  }

  XXH128_hash_t sum_{};
};

}  // namespace engine::checkpoint
