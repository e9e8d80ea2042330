// Sums over rows: the gradient of a bias.
#pragma once

#include <cstdint>

namespace engine::cpu_ops {

// sums[j] becomes, or has added when `sum`, the sum of column j of y (rows, width).
void SumColumns(const float* y, int64_t rows, int64_t width, float* sums, bool sum) noexcept;

}  // namespace engine::cpu_ops
