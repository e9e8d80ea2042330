// cuBLASLt's matrices are column-major, so a row-major matrix is its transpose there: d = a b is
// asked for as d^T = b^T a^T, with b as the first factor ("A") and n, m as the extents of d^T.
#include "blas.h"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "blas_plan.h"
#include "cuda_error.h"

namespace engine::cuda_ops {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 8;
cudaDataType_t TypeOf(DType dtype) noexcept {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasLtEpilogue_t EpilogueOf(Epilogue epilogue) noexcept {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGeluBias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case Epilogue::kGeluAuxBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kBiasGradient:  // the first factor here is the second there
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

bool HasAux(Epilogue epilogue) noexcept {
  return epilogue == Epilogue::kGeluAuxBias || epilogue == Epilogue::kGeluGradient;
}

template <typename T>
Status Set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
           const T& value) noexcept {
  return BlasStatus(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value),
                    "describing a matrix product");
}

template <typename T>
Status Set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
           const T& value) noexcept {
  return BlasStatus(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
      "describing a matrix product");
}

bool IsRecording(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

Blas::Blas(CudaDevice& device, const Settings& settings) noexcept
    : device_(device), settings_(settings) {}

Blas::~Blas() {
  plans_.clear();
  if (workspace_ != nullptr) device_.Free(workspace_);
  if (handle_ != nullptr) static_cast<void>(cublasLtDestroy(handle_));
}

Status Blas::Create(CudaDevice& device, const Settings& settings,
                    std::unique_ptr<Blas>* out) noexcept {
  ENGINE_RETURN_IF_ERROR(device.Use());
  std::unique_ptr<Blas> blas(new (std::nothrow) Blas(device, settings));
  if (blas == nullptr) return Status::Error(StatusCode::kResourceExhausted, "memory is out");
  CUDA_OPS_RETURN_IF_BLAS_ERROR(cublasLtCreate(&blas->handle_), "setting up cuBLASLt");
  *out = std::move(blas);
  return {};
}

Result<bool> Blas::Supports(const MatrixProduct& product, const MatrixOperands& operands) noexcept {
  const std::lock_guard lock(mutex_);
  Plan* plan = nullptr;
  ENGINE_RETURN_IF_ERROR(Find(product, operands, &plan));
  return !plan->candidates.empty();
}

Status Blas::Multiply(const MatrixProduct& product, const MatrixOperands& operands,
                      cudaStream_t stream) noexcept {
  const std::lock_guard lock(mutex_);
  Plan* plan = nullptr;
  ENGINE_RETURN_IF_ERROR(Find(product, operands, &plan));
  if (plan->candidates.empty()) {
    return Status::Error(StatusCode::kUnsupported,
                         "cuBLASLt has no algorithm for a product of (%lld, %lld) and (%lld, %lld) "
                         "in %s with a result in %s",
                         static_cast<long long>(product.m), static_cast<long long>(product.k),
                         static_cast<long long>(product.k), static_cast<long long>(product.n),
                         Name(product.factors), Name(product.result));
  }
  if (settings_.tune && !plan->measured && !IsRecording(stream)) {
    ENGINE_RETURN_IF_ERROR(Tune(plan, operands, stream));
  }
  return Run(*plan, plan->candidates[plan->chosen], operands, stream);
}

int32_t Blas::measured() noexcept {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(
      std::count_if(plans_.begin(), plans_.end(), [](const auto& plan) { return plan->measured; }));
}

Status Blas::Find(const MatrixProduct& product, const MatrixOperands& operands,
                  Plan** out) noexcept {
  const Alignments alignments(operands);
  for (const auto& plan : plans_) {
    if (plan->product == product && plan->alignments == alignments) {
      *out = plan.get();
      return {};
    }
  }
  if (workspace_ == nullptr) {
    ENGINE_RETURN_IF_ERROR(device_.Allocate(kWorkspaceBytes, &workspace_));
  }
  std::unique_ptr<Plan> plan(new (std::nothrow) Plan(product, alignments));
  if (plan == nullptr) return Status::Error(StatusCode::kResourceExhausted, "memory is out");
  ENGINE_RETURN_IF_ERROR(MakePlan(plan.get()));
  // The library sees by these pointers how they are aligned.
  ENGINE_RETURN_IF_ERROR(SetEpiloguePointers(*plan, operands));
  ENGINE_RETURN_IF_ERROR(Propose(plan.get()));
  plans_.push_back(std::move(plan));
  *out = plans_.back().get();
  return {};
}

Status Blas::MakePlan(Plan* plan) noexcept {
  const MatrixProduct& product = plan->product;
  const cudaDataType_t factors = TypeOf(product.factors), result = TypeOf(product.result);
  const bool tf32 = settings_.tf32 && product.factors == DType::kFloat32;
  CUDA_OPS_RETURN_IF_BLAS_ERROR(
      cublasLtMatmulDescCreate(
          &plan->description, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "describing a matrix product");
  const auto transposed = [](bool is) -> int32_t { return is ? CUBLAS_OP_T : CUBLAS_OP_N; };
  ENGINE_RETURN_IF_ERROR(
      Set(plan->description, CUBLASLT_MATMUL_DESC_TRANSA, transposed(product.b_transposed)));
  ENGINE_RETURN_IF_ERROR(
      Set(plan->description, CUBLASLT_MATMUL_DESC_TRANSB, transposed(product.a_transposed)));
  ENGINE_RETURN_IF_ERROR(
      Set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(product.epilogue)));
  if (product.epilogue != Epilogue::kNone) {
    ENGINE_RETURN_IF_ERROR(
        Set(plan->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(result)));
  }
  // The type of `aux` stays unset: it is then that of the result, and for these types the library
  // wants it so.
  if (HasAux(product.epilogue)) {
    ENGINE_RETURN_IF_ERROR(Set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.n));
  }
  // The columns of a stored (rows, columns) matrix are the rows of its transpose.
  const auto layout = [](cublasLtMatrixLayout_t* out, cudaDataType_t type, int64_t rows,
                         int64_t columns) {
    return BlasStatus(cublasLtMatrixLayoutCreate(out, type, static_cast<uint64_t>(columns),
                                                 static_cast<uint64_t>(rows), columns),
                      "describing a matrix");
  };
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  ENGINE_RETURN_IF_ERROR(
      layout(&plan->a, factors, product.a_transposed ? k : m, product.a_transposed ? m : k));
  ENGINE_RETURN_IF_ERROR(
      layout(&plan->b, factors, product.b_transposed ? n : k, product.b_transposed ? k : n));
  return layout(&plan->d, result, m, n);
}

Status Blas::Propose(Plan* plan) noexcept {
  cublasLtMatmulPreference_t raw = nullptr;
  CUDA_OPS_RETURN_IF_BLAS_ERROR(cublasLtMatmulPreferenceCreate(&raw),
                                "asking cuBLASLt for algorithms");
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        decltype([](cublasLtMatmulPreference_t preference) {
                          static_cast<void>(cublasLtMatmulPreferenceDestroy(preference));
                        })>
      preference(raw);
  ENGINE_RETURN_IF_ERROR(
      Set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes)));
  // A sum in parts has one order if the parts are kept apart and added in a second step; in place
  // they are added in turn, but not in an order that is promised.
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes));
  const Alignments& alignments = plan->alignments;
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.b));
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.a));
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.d));
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.d));

  cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan->description, plan->b, plan->a, plan->d, plan->d,
                                     raw, kCandidates, results, &count);
  // Those three mean that there is none.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      status == CUBLAS_STATUS_ARCH_MISMATCH) {
    return {};
  }
  CUDA_OPS_RETURN_IF_BLAS_ERROR(status, "asking cuBLASLt for algorithms");
  for (int i = 0; i < count; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= kWorkspaceBytes) {
      plan->candidates.push_back(results[i].algo);
    }
  }
  return {};
}

// They are part of the description, which mutex_ guards.
Status Blas::SetEpiloguePointers(const Plan& plan, const MatrixOperands& operands) noexcept {
  if (plan.product.epilogue == Epilogue::kNone) return {};
  ENGINE_RETURN_IF_ERROR(Set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias));
  if (!HasAux(plan.product.epilogue)) return {};
  return Set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux);
}

Status Blas::Run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                 const MatrixOperands& operands, cudaStream_t stream) noexcept {
  ENGINE_RETURN_IF_ERROR(SetEpiloguePointers(plan, operands));
  const float alpha = 1, beta = plan.product.sum ? 1.0f : 0.0f;
  return BlasStatus(cublasLtMatmul(handle_, plan.description, &alpha, operands.b, plan.b,
                                   operands.a, plan.a, &beta, operands.d, plan.d, operands.d,
                                   plan.d, &algorithm, workspace_, kWorkspaceBytes, stream),
                    "a matrix product of cuBLASLt");
}

}  // namespace engine::cuda_ops
