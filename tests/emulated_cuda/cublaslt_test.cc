// The fake cuBLASLt against loops in double precision, and what it refuses.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/emulated_cuda/device_array.h"

namespace emulated_cuda {
namespace {

using Values = std::vector<double>;

struct Case {
  int m = 5, n = 7, k = 9;
  bool transposed_a = false, transposed_b = false;
  cudaDataType_t factors = CUDA_R_32F, result = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float alpha = 1, beta = 0;
  int batch = 1;
  int aux_ld = 16;

  int lda() const { return (transposed_a ? k : m) + 3; }
  int ldb() const { return (transposed_b ? n : k) + 1; }
  int ldd() const { return m + 2; }
};

double Rounded(double value, cudaDataType_t type) {
  const auto single = static_cast<float>(value);
  return type == CUDA_R_16BF ? __bfloat162float(__float2bfloat16_rn(single)) : single;
}

// Memory with `values` in one of the two types.
class Memory {
 public:
  Memory(const Values& values, cudaDataType_t type) : type_(type), bytes_(Encode(values, type)) {}

  void* data() { return bytes_.data(); }
  Values Read() const {
    const std::vector<char> bytes = bytes_.Read();
    const size_t size = type_ == CUDA_R_16BF ? 2 : 4;
    Values values(bytes.size() / size);
    for (size_t i = 0; i < values.size(); ++i) {
      if (type_ == CUDA_R_16BF) {
        __nv_bfloat16 value;
        std::memcpy(&value, &bytes[i * 2], 2);
        values[i] = __bfloat162float(value);
      } else {
        float value;
        std::memcpy(&value, &bytes[i * 4], 4);
        values[i] = value;
      }
    }
    return values;
  }

 private:
  static std::vector<char> Encode(const Values& values, cudaDataType_t type) {
    std::vector<char> bytes(values.size() * (type == CUDA_R_16BF ? 2 : 4));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto single = static_cast<float>(values[i]);
      const __nv_bfloat16 half = __float2bfloat16_rn(single);
      if (type == CUDA_R_16BF) {
        std::memcpy(&bytes[i * 2], &half, 2);
      } else {
        std::memcpy(&bytes[i * 4], &single, 4);
      }
    }
    return bytes;
  }

  const cudaDataType_t type_;
  Array<char> bytes_;
};

Values Draw(size_t count, cudaDataType_t type, uint32_t seed) {
  std::mt19937 random(seed);
  Values values(count);
  for (double& value : values) value = Rounded(random() % 4001 / 2000.0 - 1, type);
  return values;
}

// One call with all that it needs.
class Product {
 public:
  explicit Product(const Case& c)
      : case_(c),
        a_(Draw(Size(c.lda(), c.transposed_a ? c.m : c.k), c.factors, 1)),
        b_(Draw(Size(c.ldb(), c.transposed_b ? c.k : c.n), c.factors, 2)),
        d_(Draw(Size(c.ldd(), c.n), c.result, 3)),
        bias_(Draw(16, c.result, 4)),
        aux_(Draw(Size(c.aux_ld, c.n), c.result, 5)),
        a_memory_(a_, c.factors),
        b_memory_(b_, c.factors),
        d_memory_(d_, c.result),
        bias_memory_(bias_, c.result),
        aux_memory_(aux_, c.result) {
    EXPECT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&description_, c.compute, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    Set(CUBLASLT_MATMUL_DESC_TRANSA, Operation(c.transposed_a));
    Set(CUBLASLT_MATMUL_DESC_TRANSB, Operation(c.transposed_b));
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_memory_.data());
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux_memory_.data());
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<int64_t>(c.aux_ld));
    a_layout_ = Layout(c.factors, c.transposed_a ? c.k : c.m, c.transposed_a ? c.m : c.k, c.lda());
    b_layout_ = Layout(c.factors, c.transposed_b ? c.n : c.k, c.transposed_b ? c.k : c.n, c.ldb());
    d_layout_ = Layout(c.result, c.m, c.n, c.ldd());
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    const uint64_t workspace = 1 << 16;
    EXPECT_EQ(
        cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace, sizeof workspace),
        CUBLAS_STATUS_SUCCESS);
  }
  ~Product() {
    cublasLtMatmulPreferenceDestroy(preference_);
    for (cublasLtMatrixLayout_t layout : {a_layout_, b_layout_, d_layout_}) {
      cublasLtMatrixLayoutDestroy(layout);
    }
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
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, description_, a_layout_, b_layout_, d_layout_,
                                       d_layout_, preference_, 8, out->data(), &count);
    out->resize(static_cast<size_t>(count));
    return status;
  }

  cublasStatus_t Run(const cublasLtMatmulAlgo_t* algorithm) {
    Array<char> workspace(1 << 16);
    const cublasStatus_t status =
        cublasLtMatmul(handle_, description_, &case_.alpha, a_memory_.data(), a_layout_,
                       b_memory_.data(), b_layout_, &case_.beta, d_memory_.data(), d_layout_,
                       d_memory_.data(), d_layout_, algorithm, workspace.data(), 1 << 16, nullptr);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
    return status;
  }

  Values result() const { return d_memory_.Read(); }

  // Compares all results with loops.
  void Check() {
    const Case& c = case_;
    const double tolerance = c.result == CUDA_R_16BF ? 2e-2 : 1e-5;
    const Values d = d_memory_.Read();
    for (int column = 0; column < c.n; ++column) {
      for (int row = 0; row < c.m; ++row) {
        const size_t place = Size(column, c.ldd()) + static_cast<size_t>(row);
        double value = c.beta * d_[place];
        for (int i = 0; i < c.k; ++i) value += c.alpha * A(row, i) * B(i, column);
        EXPECT_NEAR(d[place], value, tolerance * (1 + std::abs(value))) << row << ' ' << column;
      }
    }
  }

 private:
  static size_t Size(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }
  static int32_t Operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }
  static cublasLtMatrixLayout_t Layout(cudaDataType_t type, int rows, int columns, int ld) {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                         static_cast<uint64_t>(columns), ld),
              CUBLAS_STATUS_SUCCESS);
    return layout;
  }
  double A(int row, int i) const {
    return a_[case_.transposed_a ? Size(row, case_.lda()) + static_cast<size_t>(i)
                                 : Size(i, case_.lda()) + static_cast<size_t>(row)];
  }
  double B(int i, int column) const {
    return b_[case_.transposed_b ? Size(i, case_.ldb()) + static_cast<size_t>(column)
                                 : Size(column, case_.ldb()) + static_cast<size_t>(i)];
  }

  const Case case_;
  const Values a_, b_, d_, bias_, aux_;
  Memory a_memory_, b_memory_, d_memory_, bias_memory_, aux_memory_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t description_ = nullptr;
  cublasLtMatrixLayout_t a_layout_ = nullptr, b_layout_ = nullptr, d_layout_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
};

void RunAll(const Case& c) {
  std::vector<cublasLtMatmulHeuristicResult_t> proposals;
  {
    Product product(c);
    ASSERT_EQ(product.Propose(&proposals), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(proposals.size(), 3u);
  }
  for (const auto& proposal : proposals) {
    Product product(c);
    ASSERT_EQ(product.Run(&proposal.algo), CUBLAS_STATUS_SUCCESS);
    product.Check();
  }
  Product product(c);
  ASSERT_EQ(product.Run(nullptr), CUBLAS_STATUS_SUCCESS);
  product.Check();
}

TEST(EmulatedCublasLt, TransposesScalesAndTypes) {
  for (int bits = 0; bits < 4; ++bits) {
    Case c{.transposed_a = (bits & 1) != 0, .transposed_b = (bits & 2) != 0};
    RunAll(c);
    c.alpha = 0.5f;
    c.beta = -2;
    RunAll(c);
    c.factors = CUDA_R_16BF;
    RunAll(c);
    c.result = CUDA_R_16BF;
    RunAll(c);
  }
}

// 11 significant bits, ties away from zero.
double ToTf32(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::ldexp(std::round(std::ldexp(fraction, 11)), exponent - 11);
}

TEST(EmulatedCublasLt, FactorsAreRoundedForTf32) {
  const double a = Draw(1, CUDA_R_32F, 1)[0], b = Draw(1, CUDA_R_32F, 2)[0];
  ASSERT_NE(static_cast<float>(a * b), static_cast<float>(ToTf32(a) * ToTf32(b)));
  Case c{.m = 1, .n = 1, .k = 1, .compute = CUBLAS_COMPUTE_32F_FAST_TF32};
  Product rounded(c);
  ASSERT_EQ(rounded.Run(nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(rounded.result()[0], static_cast<float>(ToTf32(a) * ToTf32(b)));
  c.compute = CUBLAS_COMPUTE_32F;
  Product exact(c);
  ASSERT_EQ(exact.Run(nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(exact.result()[0], static_cast<float>(a * b));
}

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
  ASSERT_EQ(Product(Case{}).Propose(&proposals), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(Product(Case{.m = 6}).Run(&proposals[0].algo), CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(Product(Case{}).Run(&proposals[0].algo), CUBLAS_STATUS_SUCCESS);
}

TEST(EmulatedCublasLt, AttributesHaveSizes) {
  cublasLtMatmulDesc_t description = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
            CUBLAS_STATUS_SUCCESS);
  const int64_t wide = 1;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &wide, 8),
            CUBLAS_STATUS_INVALID_VALUE);
  int32_t narrow = -1;
  EXPECT_EQ(
      cublasLtMatmulDescGetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &narrow, 4, nullptr),
      CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(narrow, CUBLAS_OP_N);
  cublasLtMatmulDescDestroy(description);
}

}  // namespace
}  // namespace emulated_cuda
