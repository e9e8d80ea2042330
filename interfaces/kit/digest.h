// Checksums of bytes against corruption, not against an attacker: XXH3, of the library xxHash,
// whose header holds all that it needs.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace engine::kit {

// With 128 bits, of bytes that come in parts.
class Digest {
 public:
  Digest() noexcept { XXH3_128bits_reset(&state_); }

  void Add(const void* data, size_t size_bytes) noexcept {
    if (size_bytes > 0) XXH3_128bits_update(&state_, data, size_bytes);
  }

  // Large data sets are not read to begin a run: the size, and of more than 1 MiB parts of so much
  // in all, among them the beginning and the end.
  void AddParts(const uint8_t* data, size_t size_bytes) noexcept {
    constexpr size_t kParts = 16, kPartBytes = size_t{1} << 16;
    const auto size = static_cast<int64_t>(size_bytes);
    Add(&size, sizeof size);
    if (size_bytes <= kParts * kPartBytes) return Add(data, size_bytes);
    for (size_t i = 0; i < kParts; ++i) {
      Add(data + (size_bytes - kPartBytes) * i / (kParts - 1), kPartBytes);
    }
  }

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

// With 64 bits. Of internal linkage, so that a file may compile it for other instructions.
static inline uint64_t Digest64(const void* data, size_t size_bytes) noexcept {
  return XXH3_64bits(data, size_bytes);
}

}  // namespace engine::kit
