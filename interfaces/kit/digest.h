// A checksum of bytes against corruption, not against an attacker: XXH3 with 128 bits, of the
// library xxHash, whose header holds all that it needs.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <string>

namespace engine::kit {

class Digest {
 public:
  Digest() noexcept { XXH3_128bits_reset(&state_); }

  void Add(const void* data, size_t size_bytes) noexcept {
    if (size_bytes > 0) XXH3_128bits_update(&state_, data, size_bytes);
  }

  // Half of what Text says.
  uint64_t Low64() const noexcept { return XXH3_128bits_digest(&state_).low64; }

  // Of all bytes so far: "xxh3_128:" and 32 hexadecimal digits, most significant first.
  std::string Text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(&state_);
    char text[48];
    std::snprintf(text, sizeof text, "xxh3_128:%016" PRIx64 "%016" PRIx64, uint64_t{hash.high64},
                  uint64_t{hash.low64});
    return text;
  }

 private:
  XXH3_state_t state_;
};

}  // namespace engine::kit
