// Products of large matrices, by oneDNN's sgemm.
#pragma once

#include <cstdint>

#include "engine/status.h"

namespace engine::cpu_ops {

// A row-major matrix as an operand: op(data) where `transposed` swaps its two dimensions.
struct Operand {
  const float* data;
  bool transposed;
  int64_t stride = 0;  // between rows of the memory; 0: there is nothing between them
};

struct GemmSizes {
  int64_t m, n, k;

  bool operator==(const GemmSizes&) const = default;
};

// c (m, n) = scale a (m, k) b (k, n), or += when `sum`. In the threads of the call, or, where it is
// called from one of several, on that one. 0, or what GemmError makes a sentence of.
int TryGemm(const GemmSizes& sizes, Operand a, Operand b, float* c, bool sum,
            float scale = 1.0f) noexcept;
Status GemmError(const char* op, const GemmSizes& sizes, int error) noexcept;

inline Status Gemm(const char* op, const GemmSizes& sizes, Operand a, Operand b, float* c,
                   bool sum) noexcept {
  const int error = TryGemm(sizes, a, b, c, sum);
  return error == 0 ? Status() : GemmError(op, sizes, error);
}

}  // namespace engine::cpu_ops
