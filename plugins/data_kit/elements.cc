#include "data_kit/elements.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "kit/float16.h"

namespace engine::data_kit {
namespace {

// A float16, which the language has no type for.
struct Half {
  uint16_t bits;
};

// In the other byte order.
template <typename T>
T Swapped(T value) {
  if constexpr (sizeof(T) == 2)
    return std::bit_cast<T>(__builtin_bswap16(std::bit_cast<uint16_t>(value)));
  if constexpr (sizeof(T) == 4)
    return std::bit_cast<T>(__builtin_bswap32(std::bit_cast<uint32_t>(value)));
  if constexpr (sizeof(T) == 8)
    return std::bit_cast<T>(__builtin_bswap64(std::bit_cast<uint64_t>(value)));
  return value;
}

// A float that no int64_t is like has undefined behaviour as one: 0.
template <typename T, typename Out>
Out Converted(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return static_cast<Out>(kit::FromFloat16(value.bits));
  } else if constexpr (std::is_floating_point_v<T> && std::is_integral_v<Out>) {
    return value > -0x1p63 && value < 0x1p63 ? static_cast<Out>(value) : 0;
  } else {
    return static_cast<Out>(value);
  }
}

// One loop for each byte order, so that each vectorises.
template <typename T, typename Out>
void Read(bool swap, const uint8_t* bytes, int64_t count, Out* out) {
  const auto loop = [&](auto order) {
    for (int64_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      out[i] = Converted<T, Out>(order(value));
    }
  };
  if (swap) return loop([](T value) { return Swapped(value); });
  loop([](T value) { return value; });
}

// The type of each size of a kind.
template <typename One, typename Two, typename Four, typename Eight, typename Out>
void ReadSize(ElementType type, const uint8_t* bytes, int64_t count, Out* out) {
  const bool swap = type.big_endian == (std::endian::native == std::endian::little);
  switch (type.size_bytes) {
    case 1:
      return Read<One>(swap, bytes, count, out);
    case 2:
      return Read<Two>(swap, bytes, count, out);
    case 4:
      return Read<Four>(swap, bytes, count, out);
    default:
      return Read<Eight>(swap, bytes, count, out);
  }
}

}  // namespace

template <typename Out>
void ReadElements(ElementType type, const uint8_t* bytes, int64_t count, Out* out) {
  switch (type.kind) {
    case ElementType::Kind::kUnsigned:
      return ReadSize<uint8_t, uint16_t, uint32_t, uint64_t>(type, bytes, count, out);
    case ElementType::Kind::kSigned:
      return ReadSize<int8_t, int16_t, int32_t, int64_t>(type, bytes, count, out);
    case ElementType::Kind::kFloat:
      // There is no float of one byte.
      return ReadSize<int8_t, Half, float, double>(type, bytes, count, out);
  }
}

template void ReadElements(ElementType, const uint8_t*, int64_t, float*);
template void ReadElements(ElementType, const uint8_t*, int64_t, double*);
template void ReadElements(ElementType, const uint8_t*, int64_t, int64_t*);

}  // namespace engine::data_kit
