#include "reduce.h"

#include <bit>
#include <cstring>

// `out` may be one of the inputs, element by element, which hinders no vectorisation.
#if defined(__clang__)
#define TCP_NO_LOOP_CARRIED_DEPENDENCE _Pragma("clang loop vectorize(assume_safety)")
#else
#define TCP_NO_LOOP_CARRIED_DEPENDENCE _Pragma("GCC ivdep")
#endif

namespace engine::tcp {
namespace {

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
  static float Load(uint16_t x) noexcept { return std::bit_cast<float>(uint32_t{x} << 16); }
  static uint16_t Store(float x) noexcept {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
};

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits; ties to even.
struct Float16 {
  using Stored = uint16_t;
  using Accumulator = float;

  static float Load(uint16_t x) noexcept {
    const uint32_t sign = uint32_t{x & 0x8000u} << 16;
    const uint32_t exponent = (x >> 10) & 31;
    const uint32_t fraction = x & 0x3ff;
    if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
      const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
      return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
    }
    const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
    return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
  }

  static uint16_t Store(float x) noexcept {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t sign = (bits >> 16) & 0x8000;
    const uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
    const float value = std::bit_cast<float>(magnitude);
    if (value >= 65520.0f) return static_cast<uint16_t>(sign | 0x7c00);
    if (value < 0x1p-14f) {  // the spacing of floats at 0.5 is 2^-24: the addition rounds
      const uint32_t steps = std::bit_cast<uint32_t>(value + 0.5f) - std::bit_cast<uint32_t>(0.5f);
      return static_cast<uint16_t>(sign | steps);
    }
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return static_cast<uint16_t>(sign | ((rounded >> 13) - ((127 - 15) << 10)));
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
struct Kernels {
  using Stored = typename Format::Stored;
  using Accumulator = typename Format::Accumulator;
  static_assert(sizeof(Accumulator) <= kAccumulatorGrowth * sizeof(Stored));

  static void Combine(void* out, const void* a, const void* b, size_t count) noexcept {
    auto* const result = static_cast<Stored*>(out);
    const auto* const left = static_cast<const Stored*>(a);
    const auto* const right = static_cast<const Stored*>(b);
    TCP_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) {
      result[i] = Format::Store(Operation::Apply(Format::Load(left[i]), Format::Load(right[i])));
    }
  }

  static void Load(void* accumulator, const void* x, size_t count) noexcept {
    auto* const result = static_cast<Accumulator*>(accumulator);
    const auto* const input = static_cast<const Stored*>(x);
    TCP_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) result[i] = Format::Load(input[i]);
  }

  static void Fold(void* accumulator, const void* x, size_t count) noexcept {
    auto* const result = static_cast<Accumulator*>(accumulator);
    const auto* const input = static_cast<const Stored*>(x);
    TCP_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) {
      result[i] = Operation::Apply(result[i], Format::Load(input[i]));
    }
  }

  static void Store(void* out, const void* accumulator, size_t count) noexcept {
    auto* const result = static_cast<Stored*>(out);
    const auto* const input = static_cast<const Accumulator*>(accumulator);
    TCP_NO_LOOP_CARRIED_DEPENDENCE
    for (size_t i = 0; i < count; ++i) result[i] = Format::Store(input[i]);
  }

  static constexpr ReduceKernels kTable{Combine, Load, Fold, Store};
};

template <typename Operation>
const ReduceKernels& KernelsFor(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return Kernels<Plain<float>, Operation>::kTable;
    case DType::kInt32:
      return Kernels<Plain<int32_t>, Operation>::kTable;
    case DType::kUint8:
      return Kernels<Plain<uint8_t>, Operation>::kTable;
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
      return KernelsFor<Sum>(dtype);
    case Reduction::kMax:
      return KernelsFor<Max>(dtype);
    case Reduction::kMin:
      return KernelsFor<Min>(dtype);
  }
  ENGINE_CHECK(false, "reduction %d", static_cast<int>(reduction));
}

}  // namespace engine::tcp
