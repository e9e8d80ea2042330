// What the files of Blas share.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "blas.h"

namespace engine::cuda_ops {

// Alignments beyond this make no difference to cuBLASLt's kernels.
constexpr uint32_t kLargestAlignment = 16;

inline Status BlasStatus(cublasStatus_t status, const char* what) noexcept {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Status::Error(
      status == CUBLAS_STATUS_ALLOC_FAILED ? StatusCode::kResourceExhausted : StatusCode::kDevice,
      "%s: %s", what, cublasLtGetStatusString(status));
}

#define CUDA_OPS_RETURN_IF_BLAS_ERROR(expression, what) \
  ENGINE_RETURN_IF_ERROR(BlasStatus((expression), what))

inline uint32_t AlignmentOf(const void* pointer) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uint32_t alignment = kLargestAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

struct Alignments {
  uint32_t a, b, d, bias, aux;

  explicit Alignments(const MatrixOperands& operands) noexcept
      : a(AlignmentOf(operands.a)),
        b(AlignmentOf(operands.b)),
        d(AlignmentOf(operands.d)),
        bias(AlignmentOf(operands.bias)),
        aux(AlignmentOf(operands.aux)) {}
  bool operator==(const Alignments&) const noexcept = default;
};

// What cuBLASLt is told about one shape, and its proposals, best guess first.
struct Blas::Plan {
  MatrixProduct product;
  Alignments alignments;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  std::vector<cublasLtMatmulAlgo_t> candidates;  // empty: there is no algorithm
  size_t chosen = 0;
  bool measured = false;

  Plan(const MatrixProduct& wanted, const Alignments& given) noexcept
      : product(wanted), alignments(given) {}
  ~Plan() {
    if (description != nullptr) static_cast<void>(cublasLtMatmulDescDestroy(description));
    for (cublasLtMatrixLayout_t layout : {a, b, d}) {
      if (layout != nullptr) static_cast<void>(cublasLtMatrixLayoutDestroy(layout));
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  size_t result_bytes() const noexcept {
    return static_cast<size_t>(product.m) * static_cast<size_t>(product.n) * SizeOf(product.result);
  }
};

}  // namespace engine::cuda_ops
