#include "tests/emulated_cuda/nccl/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace fake_nccl {
namespace {

struct BFloat16 {
  uint16_t bits;
  operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }  // NOLINT
  explicit BFloat16(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    // To nearest, ties to even; a NaN stays one.
    bits = std::isnan(value) ? static_cast<uint16_t>(word >> 16 | 0x40)
                             : static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
};

template <typename Element, typename Sum>
void ReduceAs(ncclRedOp_t operation, const uint8_t* const* sources, int ranks, size_t count,
              uint8_t* target) {
  for (size_t i = 0; i < count; ++i) {
    Sum result{};
    for (int r = 0; r < ranks; ++r) {
      Element element(Sum{});
      std::memcpy(&element, sources[r] + i * sizeof(Element), sizeof(Element));
      const Sum value = static_cast<Sum>(element);
      if (r == 0) {
        result = value;
      } else if (operation == ncclMax) {
        result = std::max(result, value);
      } else if (operation == ncclMin) {
        result = std::min(result, value);
      } else {
        result = result + value;
      }
    }
    const Element rounded(static_cast<Element>(result));
    std::memcpy(target + i * sizeof(Element), &rounded, sizeof(Element));
  }
}

}  // namespace

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclUint8:
      return 1;
    default:
      return 0;
  }
}

void Reduce(ncclDataType_t type, ncclRedOp_t operation, const uint8_t* const* sources, int ranks,
            size_t count, uint8_t* target) {
  switch (type) {
    case ncclFloat32:
      return ReduceAs<float, float>(operation, sources, ranks, count, target);
    case ncclInt32:
      return ReduceAs<uint32_t, int32_t>(operation, sources, ranks, count, target);
    case ncclFloat16:
      return ReduceAs<_Float16, float>(operation, sources, ranks, count, target);
    case ncclBfloat16:
      return ReduceAs<BFloat16, float>(operation, sources, ranks, count, target);
    case ncclUint8:
      return ReduceAs<uint8_t, uint32_t>(operation, sources, ranks, count, target);
    default:
      return;
  }
}

}  // namespace fake_nccl
