#include "small_gemm.h"

#include <algorithm>
#include <bit>

#include "simd.h"

namespace engine::cpu_ops {
namespace {

// *sum += factor * row, of floats or of pairs, whose two products are added.
template <bool kPairs, typename Vector>
CPU_OPS_INLINE void AddProduct(float factor, Vector row, Vector* sum) noexcept {
  if constexpr (!kPairs) {
    *sum += factor * row;
  } else {
    using Bits = typename BitsOf<Vector>::Type;
    const Bits factors = Bits{} + std::bit_cast<uint32_t>(factor), bits = std::bit_cast<Bits>(row);
#if defined(__x86_64__) && !defined(__clang__)
    // Not by the intrinsic, which cannot be inlined into what is, before it is inlined, for any x86-64.
    if constexpr (sizeof(Vector) == 64) {
      asm("vdpbf16ps %2, %1, %0" : "+v"(*sum) : "v"(bits), "v"(factors));
      return;
    }
#endif
    constexpr uint32_t kSecond = 0xffff0000u;
    *sum += std::bit_cast<Vector>(factors << 16) * std::bit_cast<Vector>(bits << 16);
    *sum += std::bit_cast<Vector>(factors & kSecond) * std::bit_cast<Vector>(bits & kSecond);
  }
}

// kRows rows and kColumns vectors of c, kept in registers while k runs.
template <bool kPairs, typename Vector, int kRows, int kColumns>
CPU_OPS_INLINE void Tile(int64_t k, StridedMatrix a, RowMatrix b, RowTarget c, bool sum) noexcept {
  constexpr int64_t kWidth = sizeof(Vector) / sizeof(float);
  Vector accumulators[kRows][kColumns] = {};
  for (int64_t p = 0; p < k; ++p) {
    Vector row[kColumns];
#pragma GCC unroll 2
    for (int j = 0; j < kColumns; ++j) {
      row[j] = LoadAs<Vector>(b.data + p * b.row_stride + j * kWidth);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const float factor = a.data[i * a.row_stride + p * a.column_stride];
#pragma GCC unroll 2
      for (int j = 0; j < kColumns; ++j) AddProduct<kPairs>(factor, row[j], &accumulators[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kColumns; ++j) {
      float* target = c.data + i * c.row_stride + j * kWidth;
      if (sum) accumulators[i][j] += LoadAs<Vector>(target);
      StoreAs(target, accumulators[i][j]);
    }
  }
}

// All rows of one panel of columns.
template <bool kPairs, typename Vector, int kColumns>
CPU_OPS_INLINE void Panel(int64_t m, int64_t k, StridedMatrix a, RowMatrix b, RowTarget c,
                          bool sum) noexcept {
  constexpr int kRows = kColumns == 1 || sizeof(Vector) == sizeof(Float16) ? kTileRows : 4;
  int64_t i = 0;
  for (; i + kRows <= m; i += kRows) {
    Tile<kPairs, Vector, kRows, kColumns>(k, a, b, c, sum);
    a.data += kRows * a.row_stride;
    c.data += kRows * c.row_stride;
  }
  for (; i < m; ++i) {
    Tile<kPairs, Vector, 1, kColumns>(k, a, b, c, sum);
    a.data += a.row_stride;
    c.data += c.row_stride;
  }
}

// As many panels of this width as there are columns from `*j` on.
template <bool kPairs, typename Vector, int kColumns>
CPU_OPS_INLINE void Panels(int64_t m, int64_t n, int64_t k, StridedMatrix a, RowMatrix b,
                           RowTarget c, bool sum, int64_t* j) noexcept {
  constexpr auto kWidth = static_cast<int64_t>(kColumns * sizeof(Vector) / sizeof(float));
  for (; *j + kWidth <= n; *j += kWidth) {
    Panel<kPairs, Vector, kColumns>(m, k, a, {b.data + *j, b.row_stride},
                                    {c.data + *j, c.row_stride}, sum);
  }
}

template <bool kPairs, typename V>
CPU_OPS_INLINE void AllPanels(int64_t m, int64_t n, int64_t k, StridedMatrix a, RowMatrix b,
                              RowTarget c, bool sum) noexcept {
  int64_t j = 0;
  Panels<kPairs, V, 2>(m, n, k, a, b, c, sum, &j);
  Panels<kPairs, V, 1>(m, n, k, a, b, c, sum, &j);
  if constexpr (kWidth < V >> 8) Panels<kPairs, Float8, 1>(m, n, k, a, b, c, sum, &j);
  if constexpr (kWidth < V >> 4) Panels<kPairs, Float4, 1>(m, n, k, a, b, c, sum, &j);
  Panels<kPairs, float, 1>(m, n, k, a, b, c, sum, &j);
}

// Four rows of four columns, through registers: a plain loop over one side would gather.
CPU_OPS_INLINE void TransposeBlock(RowMatrix source, RowTarget target, bool sum) noexcept {
  Float4 row[4];
  for (int i = 0; i < 4; ++i) row[i] = LoadAs<Float4>(source.data + i * source.row_stride);
  const Float4 low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
  const Float4 low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
  const Float4 high01 = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const Float4 high23 = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  Float4 column[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                      __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                      __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                      __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int j = 0; j < 4; ++j) {
    float* const to = target.data + j * target.row_stride;
    if (sum) column[j] += LoadAs<Float4>(to);
    StoreAs(to, column[j]);
  }
}

}  // namespace

void SmallGemm(int64_t m, int64_t n, int64_t k, StridedMatrix a, RowMatrix b, RowTarget c,
               bool sum) noexcept {
  ForProcessor([&]<typename V>(V)
                   CPU_OPS_INLINE_LAMBDA { AllPanels<false, V>(m, n, k, a, b, c, sum); });
}

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v4,avx512bf16")))
#endif
void SmallGemmOfPairs(int64_t m, int64_t n, int64_t k, StridedMatrix a, RowMatrix b, RowTarget c,
                      bool sum) noexcept {
  AllPanels<true, Float16>(m, n, k, a, b, c, sum);
}

void Transpose(RowMatrix source, int64_t rows, int64_t columns, RowTarget target,
               bool sum) noexcept {
  const int64_t block_rows = rows / 4 * 4, block_columns = columns / 4 * 4;
  const auto copy = [&](int64_t i, int64_t j) {
    const float value = source.data[i * source.row_stride + j];
    float& to = target.data[j * target.row_stride + i];
    to = sum ? to + value : value;
  };
  for (int64_t i = 0; i < block_rows; i += 4) {
    for (int64_t j = 0; j < block_columns; j += 4) {
      TransposeBlock({source.data + i * source.row_stride + j, source.row_stride},
                     {target.data + j * target.row_stride + i, target.row_stride}, sum);
    }
    for (int64_t j = block_columns; j < columns; ++j) {
      for (int64_t r = i; r < i + 4; ++r) copy(r, j);
    }
  }
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = block_rows; i < rows; ++i) copy(i, j);
  }
}

void Transpose(RowMatrix source, int64_t rows, int64_t columns, float* target,
               int64_t padded_rows) noexcept {
  Transpose(source, rows, columns, {target, padded_rows});
  for (int64_t j = 0; j < columns && rows < padded_rows; ++j) {
    std::fill(target + j * padded_rows + rows, target + (j + 1) * padded_rows, 0.0f);
  }
}

}  // namespace engine::cpu_ops
