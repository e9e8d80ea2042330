// Numbers as files store them: IDX (big-endian), NumPy and token files.
#pragma once

#include <cstdint>

namespace engine::data_kit {

struct ElementType {
  enum class Kind : uint8_t { kUnsigned, kSigned, kFloat };
  Kind kind = Kind::kUnsigned;
  uint8_t size_bytes = 1;  // 1, 2, 4 or 8; of kFloat 2, 4 or 8
  bool big_endian = false;

  bool is_integer() const { return kind != Kind::kFloat; }
};

// Writes `count` elements, dense from `bytes` on, which need not be aligned, as Out: float, double
// or int64_t. A uint64 of 2^63 or more is negative as int64_t; floats become int64_t where they can
// be.
template <typename Out>
void ReadElements(ElementType type, const uint8_t* bytes, int64_t count, Out* out);

}  // namespace engine::data_kit
