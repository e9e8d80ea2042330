// Handles of cuBLASLt and their attributes.
#include <cstddef>
#include <cstring>
#include <new>
#include <span>

#include "tests/emulated_cuda/cublaslt/problem.h"

using emulated_cuda::MatmulDescription;
using emulated_cuda::MatmulPreference;
using emulated_cuda::MatrixLayout;

namespace {

using Field = std::span<std::byte>;

template <typename T>
Field Of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Empty for attributes that are not offered.
Field Find(MatmulDescription& d, cublasLtMatmulDescAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Of(d.transposed_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Of(d.transposed_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Of(d.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Of(d.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return Of(d.bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Of(d.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Of(d.aux_ld);
    default:
      return {};
  }
}

Field Find(MatmulPreference& preference, cublasLtMatmulPreferenceAttributes_t attribute) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Of(preference.workspace_bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Of(preference.reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Of(preference.alignments[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Of(preference.alignments[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Of(preference.alignments[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Of(preference.alignments[3]);
    default:
      return {};
  }
}

template <typename T, typename Handle, typename Attribute>
cublasStatus_t Set(Handle handle, Attribute attribute, const void* value, size_t size_bytes) {
  if (!handle || !value) return CUBLAS_STATUS_INVALID_VALUE;
  const Field field = Find(*reinterpret_cast<T*>(handle), attribute);
  if (field.empty() || field.size() != size_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(field.data(), value, size_bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename Handle>
cublasStatus_t Create(const T& value, Handle* out) {
  if (!out) return CUBLAS_STATUS_INVALID_VALUE;
  *out = reinterpret_cast<Handle>(new T(value));
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T, typename Handle>
cublasStatus_t Destroy(Handle handle) {
  delete reinterpret_cast<T*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* out, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  MatmulDescription description;
  description.compute = compute;
  description.scale = scale;
  return Create(description, out);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  return Destroy<MatmulDescription>(handle);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size_bytes) {
  return Set<MatmulDescription>(handle, attribute, value, size_bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  MatrixLayout layout;
  layout.type = type;
  layout.rows = rows;
  layout.columns = columns;
  layout.ld = ld;
  return Create(layout, out);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  return Destroy<MatrixLayout>(handle);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* out) {
  return Create(MatmulPreference(), out);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  return Destroy<MatmulPreference>(handle);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size_bytes) {
  return Set<MatmulPreference>(handle, attribute, value, size_bytes);
}
