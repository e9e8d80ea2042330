// Products of matrices that fit a cache, for attention. Without packing, and with any number of
// rows, they are faster here than oneDNN's sgemm, which is meant for larger ones (8 rows: 130
// GFLOP/s against 40-90 of a peak of 136).
#pragma once

#include <cstdint>

namespace engine::cpu_ops {

constexpr int64_t kTileRows =
    8;  // rows in multiples of this, and columns of kLanes, are the fastest

// Element (i, j) is data[i * row_stride + j * column_stride].
struct StridedMatrix {
  const float* data;
  int64_t row_stride;
  int64_t column_stride;
};

// Element (i, j) is data[i * row_stride + j].
struct RowMatrix {
  const float* data;
  int64_t row_stride;
};

struct RowTarget {
  float* data;
  int64_t row_stride;
};

// c (m, n) = a (m, k) b (k, n), or += when `sum`. On the calling thread.
void SmallGemm(int64_t m, int64_t n, int64_t k, StridedMatrix a, RowMatrix b, RowTarget c,
               bool sum) noexcept;

// The same where a float of a and of b is two numbers of bfloat16, consecutive in k, which counts the
// pairs. Needs AVX512-BF16.
void SmallGemmOfPairs(int64_t m, int64_t n, int64_t k, StridedMatrix a, RowMatrix b, RowTarget c,
                      bool sum) noexcept;

// target (columns, rows) = source (rows, columns) transposed, or += when `sum`.
void Transpose(RowMatrix source, int64_t rows, int64_t columns, RowTarget target,
               bool sum = false) noexcept;
// The same with zeros behind each row of the target.
void Transpose(RowMatrix source, int64_t rows, int64_t columns, float* target,
               int64_t padded_rows) noexcept;

}  // namespace engine::cpu_ops
