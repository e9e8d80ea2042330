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

// Where an attribute lies in what is behind a handle. Attributes that are not listed are not offered.
struct Field {
  int attribute;
  size_t offset, size_bytes;
};

#define FIELD(attribute, type, member) \
  { attribute, offsetof(type, member), sizeof(type::member) }
constexpr Field kOfDescription[] = {
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, MatmulDescription, transposed_a),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, MatmulDescription, transposed_b),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, MatmulDescription, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, MatmulDescription, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, MatmulDescription, bias_type),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, MatmulDescription, aux),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, MatmulDescription, aux_ld),
};
constexpr Field kOfPreference[] = {
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MatmulPreference, workspace_bytes),
    FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, MatmulPreference, reductions),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, MatmulPreference, alignments[0]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, MatmulPreference, alignments[1]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, MatmulPreference, alignments[2]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, MatmulPreference, alignments[3]),
};
constexpr Field kOfLayout[] = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, MatrixLayout, batch),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, MatrixLayout, stride),
};
#undef FIELD

cublasStatus_t Set(std::span<const Field> fields, void* handle, int attribute, const void* value,
                   size_t size_bytes) {
  if (!handle || !value) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Field& field : fields) {
    if (field.attribute != attribute || field.size_bytes != size_bytes) continue;
    std::memcpy(static_cast<char*>(handle) + field.offset, value, size_bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
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
  return Create(MatmulDescription{.compute = static_cast<int32_t>(compute),
                                  .scale = static_cast<int32_t>(scale)},
                out);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  return Destroy<MatmulDescription>(handle);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size_bytes) {
  return Set(kOfDescription, handle, attribute, value, size_bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  return Create(
      MatrixLayout{.type = static_cast<uint32_t>(type), .rows = rows, .columns = columns, .ld = ld},
      out);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t size_bytes) {
  return Set(kOfLayout, handle, attribute, value, size_bytes);
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
  return Set(kOfPreference, handle, attribute, value, size_bytes);
}
