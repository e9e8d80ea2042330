// The loops behind kernels.h, compiled once per instruction set: each file that includes this has
// flags of its own, so everything here has internal linkage and nothing of the standard library is
// instantiated.
#pragma once

#include "kernels.h"

// `out` may be one of the inputs, element by element, which hinders no vectorisation.
#if defined(__clang__)
#define SHM_NO_LOOP_CARRIED_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#else
#define SHM_NO_LOOP_CARRIED_DEPENDENCE _Pragma("GCC ivdep")
#endif

namespace engine::shm {
namespace {

inline uint32_t BitsOf(float x) noexcept {
  return __builtin_bit_cast(uint32_t, x);
}
inline float FloatOf(uint32_t bits) noexcept {
  return __builtin_bit_cast(float, bits);
}

// Storage formats: how an element is kept, what it is accumulated in, and the way there and back.

template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static Accumulator Load(T x) noexcept { return x; }
  static T Store(Accumulator x) noexcept { return x; }
};

// The upper half of a float32; rounded to nearest, ties to even.
struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t x) noexcept { return FloatOf(uint32_t{x} << 16); }
  static uint16_t Store(float x) noexcept {
    const uint32_t bits = BitsOf(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    return static_cast<uint16_t>(x != x ? quiet : rounded);
  }
};

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits; ties to even.
struct Float16 {
  using Stored = uint16_t;
  using Accumulator = float;

  static float Load(uint16_t x) noexcept {
    const uint32_t sign = uint32_t{x & 0x8000u} << 16;
    const uint32_t exponent = (x >> 10) & 31, fraction = x & 0x3ff;
    // Zero and subnormals are multiples of 2^-24.
    const uint32_t small = BitsOf(static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-24f);
    const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
    const uint32_t normal = wide_exponent << 23 | fraction << 13;
    return FloatOf(sign | (exponent == 0 ? small : normal));
  }

  static uint16_t Store(float x) noexcept {
    const uint32_t bits = BitsOf(x);
    const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const uint32_t normal =
        ((magnitude + 0xfff + ((magnitude >> 13) & 1)) >> 13) - ((127 - 15) << 10);
    // The spacing of floats at 0.5 is 2^-24: the addition rounds to a multiple of it.
    const uint32_t small = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
    uint32_t result = magnitude < 0x38800000 ? small : normal;  // below 2^-14
    result = magnitude >= 0x477ff000 ? 0x7c00 : result;         // from 65520 on: infinity
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return static_cast<uint16_t>(sign | result);
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
    return a < b || b != b ? b : a;
  }
};

struct Min {
  template <typename T>
  static T Apply(T a, T b) noexcept {
    return b < a || b != b ? b : a;
  }
};

template <typename Format, typename Operation>
struct Loops {
  using Stored = typename Format::Stored;
  using Accumulator = typename Format::Accumulator;
  static_assert(sizeof(Accumulator) <= kAccumulatorGrowth * sizeof(Stored));

  static void Combine(void* out, const void* a, const void* b, size_t count) noexcept {
    auto* const result = static_cast<Stored*>(out);
    const auto* const left = static_cast<const Stored*>(a);
    const auto* const right = static_cast<const Stored*>(b);
    SHM_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) {
      result[i] = Format::Store(Operation::Apply(Format::Load(left[i]), Format::Load(right[i])));
    }
  }

  static void CombineTwice(void* out, void* out2, const void* a, const void* b,
                           size_t count) noexcept {
    auto* const result = static_cast<Stored*>(out);
    auto* const result2 = static_cast<Stored*>(out2);
    const auto* const left = static_cast<const Stored*>(a);
    const auto* const right = static_cast<const Stored*>(b);
    SHM_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) {
      const Stored value =
          Format::Store(Operation::Apply(Format::Load(left[i]), Format::Load(right[i])));
      result[i] = value;
      result2[i] = value;
    }
  }

  static void Load(void* accumulator, const void* x, size_t count) noexcept {
    auto* const result = static_cast<Accumulator*>(accumulator);
    const auto* const input = static_cast<const Stored*>(x);
    SHM_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) result[i] = Format::Load(input[i]);
  }

  static void Fold(void* accumulator, const void* x, size_t count) noexcept {
    auto* const result = static_cast<Accumulator*>(accumulator);
    const auto* const input = static_cast<const Stored*>(x);
    SHM_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) {
      result[i] = Operation::Apply(result[i], Format::Load(input[i]));
    }
  }

  static void Store(void* out, const void* accumulator, size_t count) noexcept {
    auto* const result = static_cast<Stored*>(out);
    const auto* const input = static_cast<const Accumulator*>(accumulator);
    SHM_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) result[i] = Format::Store(input[i]);
  }

  static constexpr ReduceKernels kKernels{Combine, CombineTwice, Load, Fold, Store};
};

#define SHM_ROW(Format) \
  { Loops<Format, Sum>::kKernels, Loops<Format, Max>::kKernels, Loops<Format, Min>::kKernels }

// In the order of DType and Reduction.
constexpr KernelTable kTable = {{SHM_ROW(Plain<float>), SHM_ROW(Plain<int32_t>),
                                 SHM_ROW(Plain<uint8_t>), SHM_ROW(BFloat16), SHM_ROW(Float16)}};
#undef SHM_ROW
static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kInt32) == 1 &&
              static_cast<int>(DType::kUint8) == 2 && static_cast<int>(DType::kBFloat16) == 3 &&
              static_cast<int>(DType::kFloat16) == 4);

}  // namespace
}  // namespace engine::shm
