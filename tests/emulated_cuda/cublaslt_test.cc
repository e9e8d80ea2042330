// What the fake cuBLASLt refuses. Its arithmetic is compared with formulas by the tests of Blas and
// of the ops.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/emulated_cuda/device_array.h"

namespace emulated_cuda {
namespace {

struct Case {
  int m = 5, n = 7, k = 9;
  cudaDataType_t factors = CUDA_R_32F, result = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int64_t aux_ld = 16;
};

// One call with all that it needs.
class Product {
 public:
  explicit Product(const Case& c) : memory_(1 << 10) {
    EXPECT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&description_, c.compute, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, memory_.data());
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, memory_.data());
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, c.aux_ld);
    a_ = Layout(c.factors, c.m, c.k);
    b_ = Layout(c.factors, c.k, c.n);
    d_ = Layout(c.result, c.m, c.n);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
  }
  ~Product() {
    cublasLtMatmulPreferenceDestroy(preference_);
    for (cublasLtMatrixLayout_t layout : {a_, b_, d_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(description_);
    cublasLtDestroy(handle_);
  }

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(description_, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }

  cublasStatus_t Propose(std::vector<cublasLtMatmulHeuristicResult_t>* out) {
    out->resize(8);
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, description_, a_, b_, d_, d_, preference_, 8, out->data(), &count);
    out->resize(static_cast<size_t>(count));
    return status;
  }

  cublasStatus_t Check(const cublasLtMatmulAlgo_t& algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(handle_, description_, a_, b_, d_, d_, &algorithm, &result);
  }
  cublasStatus_t Run(const cublasLtMatmulAlgo_t& algorithm) {
    const float one = 1, zero = 0;
    void* const data = memory_.data();
    const cublasStatus_t status =
        cublasLtMatmul(handle_, description_, &one, data, a_, data, b_, &zero, data, d_, data, d_,
                       &algorithm, nullptr, 0, nullptr);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    return status;
  }

 private:
  static cublasLtMatrixLayout_t Layout(cudaDataType_t type, int rows, int columns) {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                         static_cast<uint64_t>(columns), rows),
              CUBLAS_STATUS_SUCCESS);
    return layout;
  }

  Array<float> memory_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
};

TEST(EmulatedCublasLt, WhatTheLibraryDoesNotTakeIsRefused) {
  std::vector<cublasLtMatmulHeuristicResult_t> proposals;
  const auto status = [&](const Case& c) { return Product(c).Propose(&proposals); };
  EXPECT_EQ(status({.epilogue = CUBLASLT_EPILOGUE_GELU_AUX, .aux_ld = 9}),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status({.m = 9, .epilogue = CUBLASLT_EPILOGUE_GELU_AUX, .aux_ld = 8}),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status({.epilogue = CUBLASLT_EPILOGUE_RELU_AUX}), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status({.factors = CUDA_R_32F, .result = CUDA_R_16BF}), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status({.compute = CUBLAS_COMPUTE_16F}), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_TRUE(proposals.empty());

  Product product({.epilogue = CUBLASLT_EPILOGUE_BIAS});
  product.Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(CUDA_R_16BF));
  EXPECT_EQ(product.Propose(&proposals), CUBLAS_STATUS_INVALID_VALUE);
}

TEST(EmulatedCublasLt, AnAlgorithmIsOfOneShape) {
  std::vector<cublasLtMatmulHeuristicResult_t> proposals;
  Product one(Case{}), other(Case{.m = 6});
  ASSERT_EQ(one.Propose(&proposals), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(one.Run(proposals[0].algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(one.Check(proposals[0].algo), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(other.Run(proposals[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(other.Check(proposals[0].algo), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace emulated_cuda
