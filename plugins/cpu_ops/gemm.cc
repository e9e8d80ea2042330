#include "gemm.h"

#include <dnnl.h>

namespace engine::cpu_ops {

int TryGemm(const GemmSizes& sizes, Operand a, Operand b, float* c, bool sum,
            float scale) noexcept {
  const auto [m, n, k] = sizes;
  static_assert(dnnl_success == 0);
  const auto stride = [](Operand of, int64_t rows, int64_t columns) {
    return of.stride > 0 ? of.stride : of.transposed ? rows : columns;
  };
  return dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, scale, a.data,
                    stride(a, m, k), b.data, stride(b, k, n), sum ? 1.0f : 0.0f, c, n);
}

Status GemmError(const char* op, const GemmSizes& sizes, int error) noexcept {
  return Status::Error(
      error == dnnl_out_of_memory ? StatusCode::kResourceExhausted : StatusCode::kInternal,
      "%s: oneDNN refused a product of (%lld, %lld) and (%lld, %lld), status %d", op,
      static_cast<long long>(sizes.m), static_cast<long long>(sizes.k),
      static_cast<long long>(sizes.k), static_cast<long long>(sizes.n), error);
}

}  // namespace engine::cpu_ops
