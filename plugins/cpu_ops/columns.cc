#include "columns.h"

#include <cstring>

#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

// sums[j] += the sum of column j of y (rows, width), for j in [begin, end). Four rows at a time:
// that quarters the traffic on `sums`, and the length of the chain of roundings.
CPU_OPS_KERNEL void AddColumns(const float* y, int64_t rows, int64_t width, float* sums,
                               int64_t begin, int64_t end) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4, y += 4 * width) {
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) {
      sums[j] += (y[j] + y[width + j]) + (y[2 * width + j] + y[3 * width + j]);
    }
  }
  for (; row < rows; ++row, y += width) {
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) sums[j] += y[j];
  }
}

}  // namespace

void SumColumns(const float* y, int64_t rows, int64_t width, float* sums, bool sum) noexcept {
  const int32_t parts = PartCount(rows * width, kElementGrain);
  ForEachPart(parts, width, kLine, [&](int32_t, int64_t begin, int64_t end) {
    if (!sum) std::memset(sums + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    AddColumns(y, rows, width, sums, begin, end);
  });
}

}  // namespace engine::cpu_ops
