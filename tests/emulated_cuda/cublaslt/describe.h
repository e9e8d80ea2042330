// What is behind the handles of cuBLASLt: the attributes that the plugin sets, with the sizes and
// defaults of cublasLt.h.
#pragma once

#include <cublasLt.h>

#include <cstdint>

namespace emulated_cuda {

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

}  // namespace emulated_cuda
