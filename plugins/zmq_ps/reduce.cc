#include "reduce.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace engine::zmq_ps {
namespace {

template <typename T>
T Get(const void* data, size_t i) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Put(void* data, size_t i, T value) noexcept {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
struct Same {
  using Stored = T;
  using Wide = T;
  static T Widen(T x) noexcept { return x; }
  static T Narrow(T x) noexcept { return x; }
};

// The upper 16 bits of a float32.
struct BFloat16 {
  using Stored = uint16_t;
  using Wide = float;
  static float Widen(uint16_t x) noexcept { return std::bit_cast<float>(uint32_t{x} << 16); }
  static uint16_t Narrow(float x) noexcept {
    const auto bits = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet
    const uint32_t tie_to_even = bits >> 16 & 1;
    return static_cast<uint16_t>((bits + 0x7fff + tie_to_even) >> 16);
  }
};

// IEEE 754 binary16, 1 + 5 + 10 bits, through scaling by powers of two, which is exact.
struct Float16 {
  using Stored = uint16_t;
  using Wide = float;

  static float Widen(uint16_t x) noexcept {
    const uint32_t sign = uint32_t{x} << 16 & 0x80000000u;
    const uint32_t magnitude = x & 0x7fffu;
    // The fields in float32's places: short of 2^112, for the difference of the exponents' biases.
    float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    if (magnitude >= 0x7c00) {  // infinite or NaN
      value = std::bit_cast<float>(0x7f800000u | (magnitude & 0x3ffu) << 13);
    }
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }

  static uint16_t Narrow(float x) noexcept {
    const auto sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16 & 0x8000u);
    const float magnitude = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7e00;
    if (magnitude >= 65520.0f) return sign | 0x7c00;  // rounds to 65536 or more
    if (magnitude < 0x1p-14f) {                       // a multiple of 2^-24, as floats below 1 are
      const float shifted = magnitude + 0.5f;         // of the sum's last place
      return static_cast<uint16_t>(
          sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
    }
    const auto bits = std::bit_cast<uint32_t>(magnitude);
    const uint32_t tie_to_even = bits >> 13 & 1;
    const uint32_t rounded = bits + 0xfff + tie_to_even - (112u << 23);
    return static_cast<uint16_t>(sign | rounded >> 13);
  }
};

struct Sum {
  static float Apply(float a, float b) noexcept { return a + b; }
  static int32_t Apply(int32_t a, int32_t b) noexcept {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
  static uint8_t Apply(uint8_t a, uint8_t b) noexcept { return static_cast<uint8_t>(a + b); }
};

struct Max {
  template <typename T>
  static T Apply(T a, T b) noexcept {
    return (b > a) | (b != b) ? b : a;
  }
};

struct Min {
  template <typename T>
  static T Apply(T a, T b) noexcept {
    return (b < a) | (b != b) ? b : a;
  }
};

template <typename Format, typename Operation>
struct Kernels {
  using Stored = typename Format::Stored;
  using Wide = typename Format::Wide;

  static void Load(void* accumulator, const void* x, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) Put<Wide>(accumulator, i, Format::Widen(Get<Stored>(x, i)));
  }
  static void Fold(void* __restrict accumulator, const void* __restrict x, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) {
      const Wide folded =
          Operation::Apply(Get<Wide>(accumulator, i), Format::Widen(Get<Stored>(x, i)));
      Put<Wide>(accumulator, i, folded);
    }
  }
  static void Store(void* out, const void* accumulator, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i)
      Put<Stored>(out, i, Format::Narrow(Get<Wide>(accumulator, i)));
  }

  static constexpr ReduceKernels kTable{sizeof(Wide), std::is_same_v<Stored, Wide>, Load, Fold,
                                        Store};
};

template <typename Operation>
const ReduceKernels& KernelsOf(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return Kernels<Same<float>, Operation>::kTable;
    case DType::kInt32:
      return Kernels<Same<int32_t>, Operation>::kTable;
    case DType::kUint8:
      return Kernels<Same<uint8_t>, Operation>::kTable;
    case DType::kBFloat16:
      return Kernels<BFloat16, Operation>::kTable;
    case DType::kFloat16:
      return Kernels<Float16, Operation>::kTable;
  }
  ENGINE_CHECK(false, "dtype %d", static_cast<int>(dtype));
}

}  // namespace

const ReduceKernels& KernelsFor(DType dtype, Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::kSum:
      return KernelsOf<Sum>(dtype);
    case Reduction::kMax:
      return KernelsOf<Max>(dtype);
    case Reduction::kMin:
      return KernelsOf<Min>(dtype);
  }
  ENGINE_CHECK(false, "reduction %d", static_cast<int>(reduction));
}

}  // namespace engine::zmq_ps
