// Deflated content of gzip files and ZIP members, by zlib.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/status.h"

namespace engine::data_kit {

inline constexpr int64_t kMaxInflatedBytes = int64_t{4} << 30;

inline bool IsGzip(std::span<const uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

// kGzip: members one after the other (RFC 1952), whose checksums are compared; kRaw: one stream of
// deflate (RFC 1951).
enum class Packing { kGzip, kRaw };

// All of it, at most kMaxInflatedBytes: memory grows with what comes out. kBadData with `path`, the
// reason, and the offset in what came out, when it is damaged, cut short or larger.
Result<std::vector<uint8_t>> Inflate(std::span<const uint8_t> packed, Packing packing,
                                     const std::string& path);

}  // namespace engine::data_kit
