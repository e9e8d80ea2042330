// One call of cublasLtMatmul, and which of them the library takes.
//
// The rules are those of cublasLt.h and of the table of data types in the manual of cuBLAS, as far
// as they concern float32 and bfloat16. Where the manual leaves open what a kernel needs, this is
// strict: epilogues want their vectors and matrices aligned to 16 bytes.
#pragma once

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace emulated_cuda {

// What is behind the handles: the attributes that the plugin sets, with the sizes and defaults of
// cublasLt.h.
struct MatmulDescription {
  int32_t compute = CUBLAS_COMPUTE_32F;
  int32_t scale = CUDA_R_32F;
  int32_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  int32_t bias_type = -1;  // that of d
  void* aux = nullptr;
  int64_t aux_ld = 0;
};

// Column-major.
struct MatrixLayout {
  uint32_t type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0;
  int32_t batch = 1;
  int64_t stride = 0;  // between the matrices of a batch, in elements
};

struct MatmulPreference {
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};  // of a, b, c, d
};

inline const MatmulDescription& At(cublasLtMatmulDesc_t handle) {
  return *reinterpret_cast<const MatmulDescription*>(handle);
}
inline const MatrixLayout& At(cublasLtMatrixLayout_t handle) {
  return *reinterpret_cast<const MatrixLayout*>(handle);
}
inline const MatmulPreference& At(cublasLtMatmulPreference_t handle) {
  return *reinterpret_cast<const MatmulPreference*>(handle);
}

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

struct Operands {
  float alpha = 1, beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;  // not read where beta is 0
  void* d = nullptr;
};

// d = epilogue(alpha op(a) op(b) + beta c). Products are summed in
// float32, in `parts` parts of k that are then added: as different kernels do, whose results differ
// in the last bits. With CUBLAS_COMPUTE_32F_FAST_TF32 factors are rounded to 10 bits.
void Multiply(const Problem& problem, const Operands& operands, int parts);

}  // namespace emulated_cuda
