#include "tests/emulated_cuda/cublaslt/problem.h"

#include <initializer_list>

namespace emulated_cuda {
namespace {

constexpr uint64_t kEpilogueAlignment = 16;

bool IsFloatType(uint32_t type) {
  return type == CUDA_R_32F || type == CUDA_R_16BF;
}

bool Holds(const MatrixLayout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.ld >= static_cast<int64_t>(layout.rows);
}

bool SameShape(const MatrixLayout& c, const MatrixLayout& d) {
  return c.rows == d.rows && c.columns == d.columns && c.type == d.type;
}

// Results do not overlap.
bool BatchesFit(const Problem& p) {
  const auto fits = [&](const MatrixLayout& layout) { return layout.batch == p.d.batch; };
  const auto apart = static_cast<int64_t>(p.d.columns) * p.d.ld;
  return p.d.batch > 0 && fits(p.a) && fits(p.b) && fits(p.c) &&
         (p.d.batch == 1 || p.d.stride >= apart);
}

bool IsAligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kEpilogueAlignment == 0;
}

bool ShapesFit(const Problem& p) {
  const bool a_transposed = p.description.transposed_a != CUBLAS_OP_N;
  const bool b_transposed = p.description.transposed_b != CUBLAS_OP_N;
  const uint64_t a_rows = a_transposed ? p.a.columns : p.a.rows;
  const uint64_t b_rows = b_transposed ? p.b.columns : p.b.rows;
  const uint64_t b_columns = b_transposed ? p.b.rows : p.b.columns;
  return a_rows == p.d.rows && b_columns == p.d.columns && b_rows == static_cast<uint64_t>(p.k()) &&
         SameShape(p.c, p.d) && Holds(p.a) && Holds(p.b) && Holds(p.c) && Holds(p.d) &&
         BatchesFit(p);
}

// Factors, result: float32 and float32, bfloat16 and either.
bool TypesAreOffered(const Problem& p) {
  const bool factors = p.a.type == p.b.type && IsFloatType(p.a.type);
  const bool result = p.d.type == p.a.type || (p.a.type == CUDA_R_16BF && p.d.type == CUDA_R_32F);
  const bool compute =
      p.description.compute == CUBLAS_COMPUTE_32F ||
      (p.a.type == CUDA_R_32F && p.description.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
  return factors && result && compute && p.description.scale == CUDA_R_32F;
}

cublasStatus_t CheckEpilogue(const Problem& p) {
  const MatmulDescription& description = p.description;
  switch (description.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADB:
      break;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto has_type_of_d = [&](int32_t type) {
    return type == -1 || type == static_cast<int32_t>(p.d.type);
  };
  if (p.uses_bias()) {
    if (!has_type_of_d(description.bias_type)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!IsAligned(description.bias)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (p.has_aux()) {
    if (description.aux_ld < p.m()) return CUBLAS_STATUS_INVALID_VALUE;
    if (description.aux_ld % 8 != 0 || !IsAligned(description.aux)) {
      return CUBLAS_STATUS_NOT_SUPPORTED;
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

size_t SizeOf(uint32_t type) {
  return type == CUDA_R_16BF ? 2 : 4;
}

cublasStatus_t Check(const Problem& problem) {
  if (!ShapesFit(problem)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!TypesAreOffered(problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CheckEpilogue(problem);
}

uint64_t Problem::Hash() const {
  uint64_t hash = 14695981039346656037u;
  const auto add = [&](auto value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 1099511628211u;
  };
  add(description.compute);
  add(description.transposed_a);
  add(description.transposed_b);
  add(description.epilogue);
  add(description.aux_ld);
  for (const MatrixLayout* layout : {&a, &b, &c, &d}) {
    add(layout->type);
    add(layout->rows);
    add(layout->columns);
    add(layout->ld);
    add(layout->batch);
    add(layout->stride);
  }
  return hash;
}

}  // namespace emulated_cuda
