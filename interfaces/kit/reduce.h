// Element-wise reductions for every dtype. All ranks reduce in rank order, so they get the same
// bits in every run, whatever the instruction set.
//
// Everything has internal linkage and nothing of the standard library is instantiated: a file that
// includes this may be compiled for an instruction set of its own. The loops vectorise with
//   -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/communicator.h"
#include "kit/float16.h"

namespace engine::kit {

// Sums of 16-bit floats are kept in float32 and rounded once; integers wrap around; max and min
// give NaN when an operand is NaN. Elements need no alignment.
struct ReduceKernels {
  size_t accumulator_bytes;  // per element; as many as it has: it is its own accumulator
  // out = a op b; `out` may be `a` or `b`. What two ranks need.
  void (*combine)(void* out, const void* a, const void* b, size_t count) noexcept;
  // As above into two places at once; each may be `a` or `b`.
  void (*combine_twice)(void* out, void* out2, const void* a, const void* b, size_t count) noexcept;
  // accumulator = x; accumulator = accumulator op x; out = accumulator.
  void (*load)(void* accumulator, const void* x, size_t count) noexcept;
  void (*fold)(void* accumulator, const void* x, size_t count) noexcept;
  void (*store)(void* out, const void* accumulator, size_t count) noexcept;
};

constexpr size_t kMaxAccumulatorBytes = 4;
constexpr size_t kAccumulatorGrowth = 2;  // at most so many times the bytes of an element

// By [dtype][reduction].
struct KernelTable {
  ReduceKernels kernels[5][3];

  const ReduceKernels& For(DType dtype, Reduction reduction) const noexcept {
    return kernels[static_cast<int>(dtype)][static_cast<int>(reduction)];
  }
};

// `out` may be one of the inputs, element by element, which hinders no vectorisation. clang warns of
// a loop that it does not vectorise, as below -O3.
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#define ENGINE_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define ENGINE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace internal {
namespace {  // NOLINT(google-build-namespaces): see above

// Storage formats: how an element is kept, what it is accumulated in, and the way there and back.

template <typename T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  static Accumulator Load(T x) noexcept { return x; }
  static T Store(Accumulator x) noexcept { return x; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t x) noexcept { return FromBFloat16(x); }
  static uint16_t Store(float x) noexcept { return ToBFloat16(x); }
};

struct Float16 {
  using Stored = uint16_t;
  using Accumulator = float;
  static float Load(uint16_t x) noexcept { return FromFloat16(x); }
  static uint16_t Store(float x) noexcept { return ToFloat16(x); }
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

// Element `i` of an array that lies anywhere.
template <typename T>
[[gnu::always_inline]] inline T Get(const void* data, size_t i) noexcept {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
[[gnu::always_inline]] inline void Put(void* data, size_t i, T value) noexcept {
  __builtin_memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

template <typename Format, typename Operation>
struct Loops {
  using Stored = typename Format::Stored;
  using Accumulator = typename Format::Accumulator;
  static_assert(sizeof(Accumulator) <= kAccumulatorGrowth * sizeof(Stored) &&
                sizeof(Accumulator) <= kMaxAccumulatorBytes);

  static Stored Reduced(const void* a, const void* b, size_t i) noexcept {
    return Format::Store(
        Operation::Apply(Format::Load(Get<Stored>(a, i)), Format::Load(Get<Stored>(b, i))));
  }

  static void Combine(void* out, const void* a, const void* b, size_t count) noexcept {
    ENGINE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) Put(out, i, Reduced(a, b, i));
  }

  static void CombineTwice(void* out, void* out2, const void* a, const void* b,
                           size_t count) noexcept {
    ENGINE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      const Stored value = Reduced(a, b, i);
      Put(out, i, value);
      Put(out2, i, value);
    }
  }

  static void Load(void* accumulator, const void* x, size_t count) noexcept {
    ENGINE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) Put(accumulator, i, Format::Load(Get<Stored>(x, i)));
  }

  static void Fold(void* accumulator, const void* x, size_t count) noexcept {
    ENGINE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      Put(accumulator, i,
          Operation::Apply(Get<Accumulator>(accumulator, i), Format::Load(Get<Stored>(x, i))));
    }
  }

  static void Store(void* out, const void* accumulator, size_t count) noexcept {
    ENGINE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) Put(out, i, Format::Store(Get<Accumulator>(accumulator, i)));
  }

  static constexpr ReduceKernels kKernels{
      sizeof(Accumulator), Combine, CombineTwice, Load, Fold, Store};
};

// A row for each format, in the order of Reduction.
template <typename... Formats>
constexpr KernelTable kTableOf = {{{Loops<Formats, Sum>::kKernels, Loops<Formats, Max>::kKernels,
                                    Loops<Formats, Min>::kKernels}...}};

}  // namespace
}  // namespace internal
#if defined(__clang__)
#pragma clang diagnostic pop
#endif

namespace {  // NOLINT(google-build-namespaces): see above

// In the order of DType.
[[maybe_unused]] constexpr KernelTable kReduceKernels =
    internal::kTableOf<internal::Plain<float>, internal::Plain<int32_t>, internal::Plain<uint8_t>,
                       internal::BFloat16, internal::Float16>;
static_assert(static_cast<int>(DType::kFloat32) == 0 && static_cast<int>(DType::kInt32) == 1 &&
              static_cast<int>(DType::kUint8) == 2 && static_cast<int>(DType::kBFloat16) == 3 &&
              static_cast<int>(DType::kFloat16) == 4);

}  // namespace
}  // namespace engine::kit
