// One call of cublasLtMatmul, and which of them the library takes.
//
// The rules are those of cublasLt.h and of the table of data types in the manual of cuBLAS, as far
// as they concern float32 and bfloat16. Where the manual leaves open what a kernel needs, this is
// strict: epilogues want their vectors and matrices aligned to 16 bytes.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

#include "tests/emulated_cuda/cublaslt/describe.h"

namespace emulated_cuda {

struct Problem {
  MatmulDescription description;
  MatrixLayout a, b, c, d;

  int64_t m() const { return static_cast<int64_t>(d.rows); }
  int64_t n() const { return static_cast<int64_t>(d.columns); }
  int64_t k() const {
    return static_cast<int64_t>(description.transposed_a == CUBLAS_OP_N ? a.columns : a.rows);
  }

  bool has_bias() const { return (description.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_gelu() const { return (description.epilogue & CUBLASLT_EPILOGUE_GELU) != 0; }
  bool has_gelu_gradient() const {
    return (description.epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU;
  }
  bool has_aux() const { return (description.epilogue & 128) != 0; }
  bool sums_b() const { return description.epilogue == CUBLASLT_EPILOGUE_BGRADB; }  // over k
  bool uses_bias() const { return has_bias() || sums_b(); }
  int64_t bias_count() const { return sums_b() ? n() : m(); }

  // Of everything but pointers.
  uint64_t Hash() const;
};

size_t SizeOf(uint32_t type);

// CUBLAS_STATUS_INVALID_VALUE for what contradicts itself, CUBLAS_STATUS_NOT_SUPPORTED for what
// the library has no kernel for.
cublasStatus_t Check(const Problem& problem);

}  // namespace emulated_cuda
