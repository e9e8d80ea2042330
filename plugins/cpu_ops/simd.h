// Kernels for several instruction sets from one source, and the functions of a float that they need
// in a form that vectorises.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kit/float16.h"

// A function whose loops the compiler turns into vectors, and which names none itself: compiled once
// for AVX-512, once for AVX2 with FMA and once for any x86-64; the loader picks. Not under sanitizers:
// the pick happens before their runtime is ready. An OpenMP parallel region inside a kernel would not
// be compiled along, so kernels are serial and work on ranges (parallel.h).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define CPU_OPS_TARGET(arch) __attribute__((target("arch=" arch)))
#define CPU_OPS_HAS(arch) __builtin_cpu_supports(arch)
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CPU_OPS_KERNEL __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
#else
#define CPU_OPS_TARGET(arch)
#define CPU_OPS_HAS(arch) false
#endif
#ifndef CPU_OPS_KERNEL
#define CPU_OPS_KERNEL
#endif

#define CPU_OPS_INLINE [[gnu::always_inline]] inline
// Behind the parameters of a lambda inside a kernel: apart from it, it would be compiled for any
// x86-64.
#define CPU_OPS_INLINE_LAMBDA __attribute__((always_inline))

namespace engine::cpu_ops {

// Vectors of the compiler. They work like a float; a comparison selects by element with ?:. Those that
// are wider than the registers that a function is compiled for lie in memory, so kernels take theirs, V,
// from ForProcessor. Loops without a reduction need none of this (omp simd vectorises them), but a
// reduction over a short row does: the compiler folds the lanes of its own one by one.
using Float16 = float __attribute__((vector_size(64)));
using Float8 = float __attribute__((vector_size(32)));
using Float4 = float __attribute__((vector_size(16)));

template <typename V>
constexpr int64_t kWidth = sizeof(V) / sizeof(float);
constexpr int64_t kLanes = 16;  // of the widest: rows of memory are padded to multiples of them

enum class Registers : uint8_t { kAny, kAvx2, kAvx512 };

template <typename Body>
CPU_OPS_TARGET("x86-64-v4")
auto RunAvx512(const Body& body) noexcept {
  return body(Float16{});
}
template <typename Body>
CPU_OPS_TARGET("x86-64-v3")
auto RunAvx2(const Body& body) noexcept {
  return body(Float8{});
}

// body(V{}), an inline lambda, compiled for such registers, which V fills.
template <Registers kRegisters, typename Body>
auto CompiledFor(const Body& body) noexcept {
  if constexpr (kRegisters == Registers::kAvx512) {
    return RunAvx512(body);
  } else if constexpr (kRegisters == Registers::kAvx2) {
    return RunAvx2(body);
  } else {
    return body(Float4{});
  }
}

// A test builds the plugin without AVX-512.
#ifndef CPU_OPS_AVX512
#define CPU_OPS_AVX512 CPU_OPS_HAS("x86-64-v4")
#endif
inline const Registers kProcessor = CPU_OPS_AVX512             ? Registers::kAvx512
                                    : CPU_OPS_HAS("x86-64-v3") ? Registers::kAvx2
                                                               : Registers::kAny;

// The same for the registers of this processor.
template <typename Body>
auto ForProcessor(const Body& body) noexcept {
  if (kProcessor == Registers::kAvx512) return CompiledFor<Registers::kAvx512>(body);
  if (kProcessor == Registers::kAvx2) return CompiledFor<Registers::kAvx2>(body);
  return CompiledFor<Registers::kAny>(body);
}

// kernel<V>(arguments): a CPU_OPS_INLINE function.
#define CPU_OPS_RUN(kernel, ...) \
  ForProcessor([&]<typename V>(V) CPU_OPS_INLINE_LAMBDA { return kernel<V>(__VA_ARGS__); })

// A number of a tensor in bfloat16. Kernels that take float or this compute with floats either way.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  CPU_OPS_INLINE BFloat16(float x) noexcept : bits(kit::ToBFloat16(x)) {}
  // Not by way of a copy of the whole: loops with those do not vectorise.
  CPU_OPS_INLINE BFloat16& operator=(float x) noexcept {
    bits = kit::ToBFloat16(x);
    return *this;
  }
  CPU_OPS_INLINE operator float() const noexcept { return kit::FromBFloat16(bits); }
  CPU_OPS_INLINE BFloat16& operator+=(float x) noexcept { return *this = *this + x; }
};

// Vectors of as many integers as there are floats in V.
template <typename V>
struct LanesOf {
  static constexpr size_t kCount = sizeof(V) / sizeof(float);
  typedef uint32_t Bits __attribute__((vector_size(4 * kCount)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kCount)));
};

// The lanes at `source`: of any of the vectors above, or a float.
template <typename V>
CPU_OPS_INLINE V LoadAs(const float* source) noexcept {
  V lanes;
  std::memcpy(&lanes, source, sizeof lanes);
  return lanes;
}

template <typename V>
CPU_OPS_INLINE V LoadAs(const BFloat16* source) noexcept {
  if constexpr (std::is_same_v<V, float>) {
    return *source;
  } else {
    typename LanesOf<V>::Halves halves;
    std::memcpy(&halves, source, sizeof halves);
    return std::bit_cast<V>(__builtin_convertvector(halves, typename LanesOf<V>::Bits) << 16);
  }
}

template <typename V>
CPU_OPS_INLINE void StoreAs(float* target, V lanes) noexcept {
  std::memcpy(target, &lanes, sizeof lanes);
}

// As kit::ToBFloat16: to nearest, ties to even, and NaN stays NaN. Not by the processor's instruction,
// which flushes subnormal numbers and not every clone of a kernel has.
template <typename V>
CPU_OPS_INLINE void StoreAs(BFloat16* target, V lanes) noexcept {
  if constexpr (std::is_same_v<V, float>) {
    *target = lanes;
  } else {
    const auto bits = std::bit_cast<typename LanesOf<V>::Bits>(lanes);
    const auto nearest = bits + 0x7fff + ((bits >> 16) & 1);
    const auto rounded = lanes != lanes ? bits | 0x400000 : nearest;
    const auto halves = __builtin_convertvector(rounded >> 16, typename LanesOf<V>::Halves);
    std::memcpy(target, &halves, sizeof halves);
  }
}

// The first `count` <= kWidth numbers at `source`, and `rest` in the other lanes.
template <typename V, typename T>
CPU_OPS_INLINE V LoadAs(const T* source, int64_t count, float rest = 0.0f) noexcept {
  if (count == kWidth<V>) [[likely]]
    return LoadAs<V>(source);
  V lanes = V{} + rest;
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(&lanes, source, static_cast<size_t>(count) * sizeof(float));
  } else {
    for (int64_t i = 0; i < count; ++i) lanes[i] = source[i];
  }
  return lanes;
}

template <typename V, typename T>
CPU_OPS_INLINE void StoreAs(T* target, V lanes, int64_t count) noexcept {
  if (count == kWidth<V>) [[likely]]
    return StoreAs(target, lanes);
  T rounded[kWidth<V>];
  StoreAs(rounded, lanes);
  std::memcpy(target, rounded, static_cast<size_t>(count) * sizeof(T));
}

// Calls body(T{}, i) once for all columns i .. i + lanes of T of a row of `width`, with the widest
// T that fits, at most V. Unlike LoadAs with a count, this is fast for narrow rows too.
template <typename V, typename Body>
CPU_OPS_INLINE void ForColumns(int64_t width, const Body& body) noexcept {
  int64_t i = 0;
  for (; i + kWidth<V> <= width; i += kWidth<V>) body(V{}, i);
  for (; i + 4 <= width; i += 4) body(Float4{}, i);
  for (; i < width; ++i) body(0.0f, i);
}

// How many lanes of a row of `width` are left at `begin`.
template <typename V>
CPU_OPS_INLINE int64_t LanesAt(int64_t begin, int64_t width) noexcept {
  return width - begin < kWidth<V> ? width - begin : kWidth<V>;
}

// Calls body(begin, lanes) for the lanes of a row of `count`; whole registers have a constant number
// of them.
template <typename V, typename Body>
CPU_OPS_INLINE void ForLanes(int64_t count, const Body& body) noexcept {
  int64_t c = 0;
  for (; c + kWidth<V> <= count; c += kWidth<V>) {
    body(c, std::integral_constant<int64_t, kWidth<V>>{});
  }
  if (c < count) body(c, count - c);
}

template <typename V>
CPU_OPS_INLINE V Larger(V a, V b) noexcept {
  return a > b ? a : b;
}

// combine() of all lanes, in halves.
template <typename V, typename Combine>
CPU_OPS_INLINE float Fold(V lanes, const Combine& combine) noexcept {
  if constexpr (std::is_same_v<V, Float4>) {
    return combine(combine(lanes[0], lanes[2]), combine(lanes[1], lanes[3]));
  } else {
    using Half = std::conditional_t<std::is_same_v<V, Float16>, Float8, Float4>;
    float all[kWidth<V>];
    StoreAs(all, lanes);
    return Fold(combine(LoadAs<Half>(all), LoadAs<Half>(all + kWidth<Half>)), combine);
  }
}

template <typename V>
CPU_OPS_INLINE float Sum(V lanes) noexcept {
  return Fold(lanes, [](auto a, auto b) { return a + b; });
}

template <typename V>
CPU_OPS_INLINE float Largest(V lanes) noexcept {
  return Fold(lanes, [](auto a, auto b) { return a > b ? a : b; });
}

// Of a float, or of lanes of them.
template <typename T>
struct BitsOf {
  using Type = typename LanesOf<T>::Bits;
};
template <>
struct BitsOf<float> {
  using Type = uint32_t;
};

// e^x - 1 for x in [-ln2/2, ln2/2]: Cephes' polynomial.
template <typename T>
CPU_OPS_INLINE T SmallExpMinus1(T x) noexcept {
  T p = x * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * x + 8.3334519073e-3f;
  p = p * x + 4.1665795894e-2f;
  p = p * x + 1.6666665459e-1f;
  p = p * x + 5.0000001201e-1f;
  return p * (x * x) + x;
}

// e^x to 1e-7 relative, for a float or for lanes: 0 below -87.7 (also of -infinity), at most e^88,
// NaN of NaN. Cephes' split of ln 2.
template <typename T>
CPU_OPS_INLINE T Exp(T x) noexcept {
  using Bits = typename BitsOf<T>::Type;
  constexpr float kLimit = 88.0f;        // at -kLimit the exponent below is that of 0
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr uint32_t kRoundBits = 0x4b400000;
  const T low = T{} - kLimit, high = T{} + kLimit;
  T bounded = high < x ? high : x;  // in this order NaN stays
  bounded = low > bounded ? low : bounded;
  const T shifted = bounded * 1.44269504088896341f + kRound;
  const T n = shifted - kRound;
  const T r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  const T p = SmallExpMinus1(r) + 1.0f;
  const Bits exponent = std::bit_cast<Bits>(shifted) - kRoundBits + 127u;
  return p * std::bit_cast<T>(exponent << 23);
}

// e^x - 1, to 2e-7 relative also near 0.
CPU_OPS_INLINE float ExpMinus1(float x) noexcept {
  const float magnitude = x < 0.0f ? -x : x;
  return magnitude < 0.34f ? SmallExpMinus1(x) : Exp(x) - 1.0f;
}

// ln x to 2e-7 relative: Cephes' polynomial around 1. Of what is no normal number it is what
// std::log gives, but for the digits of those below 1e-37.
CPU_OPS_INLINE float Log(float x) noexcept {
  constexpr float kSmallest = 0x1p-126f, kInfinity = __builtin_inff();
  const bool is_small = x < kSmallest;
  const float scaled = is_small ? x * 0x1p23f : x;
  // The exponent counts from sqrt(1/2), so that m is in [sqrt(1/2), sqrt(2)).
  const uint32_t bits = std::bit_cast<uint32_t>(scaled) - 0x3f3504f3u;
  const auto exponent = static_cast<float>(static_cast<int32_t>(bits) >> 23);
  const float n = exponent - (is_small ? 23.0f : 0.0f);
  const float m = std::bit_cast<float>((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float z = m * m;
  const float tail = p * m * z + n * -2.12194440e-4f - 0.5f * z;
  const float y = m + tail + n * 0.693359375f;
  const float at_ends = x == 0.0f ? -kInfinity : x < kInfinity ? y : x;
  return x < 0.0f ? __builtin_nanf("") : at_ends;
}

// ln(1 + u) for u >= 0, also where 1 + u is rounded (Goldberg, What every computer scientist should
// know about floating-point arithmetic, theorem 4).
CPU_OPS_INLINE float Log1Plus(float u) noexcept {
  const float w = 1.0f + u;
  return w == 1.0f ? u : u * (Log(w) / (w - 1.0f));
}

// 1 / (1 + e^-x) to 2e-7 relative for x > -87. The division costs less than Newton's method would:
// it has a unit of its own beside those that the exponential keeps busy.
CPU_OPS_INLINE float Sigmoid(float x) noexcept {
  return 1.0f / (1.0f + Exp(-x));
}

// tanh(x) to 2e-7 relative: Cephes' polynomial near 0, where the other form would cancel.
CPU_OPS_INLINE float Tanh(float x) noexcept {
  const float magnitude = x < 0.0f ? -x : x;
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * x + x;
  const float far = 1.0f - 2.0f / (Exp(2.0f * magnitude) + 1.0f);
  return magnitude < 0.625f ? near : (x < 0.0f ? -far : far);
}

// erf(x) to 2e-7 relative: N. Juffa's polynomials (math.stackexchange.com, "Approximating erf"), of
// x near 0 and of ln(1 - erf x) farther out.
CPU_OPS_INLINE float Erf(float x) noexcept {
  const float t = x < 0.0f ? -x : x;
  const float z = x * x;
  float far = -1.72853470e-5f * t + 3.83197126e-4f;
  far = far * z + (-3.88396438e-3f * t + 2.42546219e-2f);
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = 1.0f - Exp(far * t - t);
  float near = -5.96761703e-4f;
  near = near * z + 4.99119423e-3f;
  near = near * z - 2.67681349e-2f;
  near = near * z + 1.12819925e-1f;
  near = near * z - 3.76125336e-1f;
  near = near * z + 1.28379166e-1f;
  near = near * x + x;
  // Beyond 4 it is 1, and the polynomial would overflow.
  const float bounded = t > 4.0f ? 1.0f : far;
  return t > 0.927734375f ? (x < 0.0f ? -bounded : bounded) : near;
}

}  // namespace engine::cpu_ops
