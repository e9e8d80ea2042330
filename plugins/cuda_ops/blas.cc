// cuBLASLt's matrices are column-major, so a row-major matrix is its transpose there: d = a b is
// asked for as d^T = b^T a^T, with b as the first factor ("A") and n, m as the extents of d^T.
#include "blas.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>

namespace engine::cuda_ops {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 32;
// Alignments beyond this make no difference to cuBLASLt's kernels.
constexpr uint32_t kLargestAlignment = 16;

Status BlasStatus(cublasStatus_t status, const char* what) noexcept {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Status::Error(
      status == CUBLAS_STATUS_ALLOC_FAILED ? StatusCode::kResourceExhausted : StatusCode::kDevice,
      "%s: %s", what, cublasLtGetStatusString(status));
}

// Of a, b, d, bias and aux.
using Alignments = std::array<uint32_t, 5>;

// Of all matrices of a batch.
Alignments AlignmentsOf(const MatrixProduct& product, const MatrixOperands& operands) noexcept {
  const void* const pointers[] = {operands.a, operands.b, operands.d, operands.bias, operands.aux};
  const auto bytes = [](int64_t elements, DType dtype) {
    return static_cast<uintptr_t>(elements) * SizeOf(dtype);
  };
  const uintptr_t strides[] = {bytes(product.a_stride, product.factors),
                               bytes(product.b_stride, product.factors),
                               bytes(product.d_stride, product.result), 0, 0};
  Alignments all;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = kLargestAlignment;
    while ((reinterpret_cast<uintptr_t>(pointers[i]) | strides[i]) % all[i] != 0) all[i] /= 2;
  }
  return all;
}

cudaDataType_t TypeOf(DType dtype) noexcept {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
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
Status Set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
           const T& value) noexcept {
  return BlasStatus(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof value),
                    "describing a matrix");
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

// What cuBLASLt is told about one shape, and its proposals, best guess first.
struct Blas::Plan {
  MatrixProduct product;
  Alignments alignments;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  // Empty: there is no algorithm. Several: the choice among them is still open.
  std::vector<cublasLtMatmulAlgo_t> candidates;
  std::optional<bool> fuses;  // once it is known

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
};

Blas::Blas(CudaDevice& device, const Settings& settings) noexcept
    : device_(device), settings_(settings), file_(settings.tune_file, settings.host) {}

Blas::~Blas() {
  plans_.clear();
  device_.Free(workspace_);
  if (handle_ != nullptr) static_cast<void>(cublasLtDestroy(handle_));
}

Status Blas::Create(CudaDevice& device, const Settings& settings,
                    std::unique_ptr<Blas>* out) noexcept {
  ENGINE_RETURN_IF_ERROR(device.Use());
  std::unique_ptr<Blas> blas(new (std::nothrow) Blas(device, settings));
  if (blas == nullptr) return Status::Error(StatusCode::kResourceExhausted, "memory is out");
  ENGINE_RETURN_IF_ERROR(BlasStatus(cublasLtCreate(&blas->handle_), "setting up cuBLASLt"));
  *out = std::move(blas);
  return {};
}

// The mutex is recursive: in_steps, which is measured here, comes back for its plain product.
Result<bool> Blas::Fuses(const MatrixProduct& product, const MatrixOperands& operands,
                         cudaStream_t stream, const InSteps& in_steps) noexcept {
  const std::lock_guard lock(mutex_);
  Plan* plan = nullptr;
  ENGINE_RETURN_IF_ERROR(Find(product, operands, &plan));
  if (plan->candidates.empty()) return false;
  if (plan->fuses || !in_steps || settings_.tune != Tune::kTime || IsRecording(stream)) {
    return plan->fuses.value_or(true);
  }
  if (plan->candidates.size() > 1) ENGINE_RETURN_IF_ERROR(Choose(plan, operands, stream));
  const std::string key = KeyOf(*plan) + ", in steps";  // in the place of an algorithm: 0 or 1
  cublasLtMatmulAlgo_t slower{};
  if (!file_.Find(key, &slower)) {
    std::optional<size_t> fastest;
    ENGINE_RETURN_IF_ERROR(Measure(
        *plan, operands, stream, 2,
        [&](size_t way, const MatrixOperands& scratch) {
          return way == 0 ? Run(*plan, plan->candidates.front(), scratch, stream)
                          : in_steps(scratch);
        },
        &fastest));
    if (!fastest) return true;
    slower.data[0] = *fastest;
    file_.Keep(key, &slower);
  }
  plan->fuses = slower.data[0] == 0;
  return *plan->fuses;
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
  if (plan->candidates.size() > 1 && !IsRecording(stream)) {
    ENGINE_RETURN_IF_ERROR(Choose(plan, operands, stream));
  }
  return Run(*plan, plan->candidates.front(), operands, stream);
}

int32_t Blas::measured() noexcept {
  const std::lock_guard lock(mutex_);
  return measured_;
}

// With the mutex, as all below. Plans are few (one per layer and pass), so they are searched one by
// one; they never go, so a Plan* stays valid.
Status Blas::Find(const MatrixProduct& product, const MatrixOperands& operands,
                  Plan** out) noexcept {
  const Alignments alignments = AlignmentsOf(product, operands);
  for (const auto& plan : plans_) {
    if (plan->product == product && plan->alignments == alignments) {
      *out = plan.get();
      return {};
    }
  }
  if (workspace_ == nullptr) ENGINE_RETURN_IF_ERROR(device_.Allocate(kWorkspaceBytes, &workspace_));
  std::unique_ptr<Plan> plan(new (std::nothrow) Plan(product, alignments));
  if (plan == nullptr) return Status::Error(StatusCode::kResourceExhausted, "memory is out");
  ENGINE_RETURN_IF_ERROR(MakePlan(plan.get()));
  // The library sees by these pointers how they are aligned.
  ENGINE_RETURN_IF_ERROR(SetEpiloguePointers(*plan, operands));
  cublasLtMatmulAlgo_t kept;
  if (settings_.tune == Tune::kTime && file_.Find(KeyOf(*plan), &kept) && Takes(*plan, kept)) {
    plan->candidates = {kept};
  } else {
    ENGINE_RETURN_IF_ERROR(Propose(plan.get()));
  }
  plans_.push_back(std::move(plan));
  *out = plans_.back().get();
  return {};
}

Status Blas::MakePlan(Plan* plan) noexcept {
  const MatrixProduct& product = plan->product;
  const cudaDataType_t factors = TypeOf(product.factors), result = TypeOf(product.result);
  const bool tf32 = settings_.tf32 && product.factors == DType::kFloat32;
  const cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  ENGINE_RETURN_IF_ERROR(
      BlasStatus(cublasLtMatmulDescCreate(&plan->description, compute, CUDA_R_32F),
                 "describing a matrix product"));
  const auto transposed = [](bool is) -> int32_t { return is ? CUBLAS_OP_T : CUBLAS_OP_N; };
  ENGINE_RETURN_IF_ERROR(
      Set(plan->description, CUBLASLT_MATMUL_DESC_TRANSA, transposed(product.b_transposed)));
  ENGINE_RETURN_IF_ERROR(
      Set(plan->description, CUBLASLT_MATMUL_DESC_TRANSB, transposed(product.a_transposed)));
  ENGINE_RETURN_IF_ERROR(Set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue));
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
  const auto layout = [&](cublasLtMatrixLayout_t* out, cudaDataType_t type, int64_t rows,
                          int64_t columns, int64_t stride) -> Status {
    ENGINE_RETURN_IF_ERROR(
        BlasStatus(cublasLtMatrixLayoutCreate(out, type, static_cast<uint64_t>(columns),
                                              static_cast<uint64_t>(rows), columns),
                   "describing a matrix"));
    if (product.batch == 1) return {};
    const auto count = static_cast<int32_t>(product.batch);
    ENGINE_RETURN_IF_ERROR(Set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count));
    return Set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  };
  const auto [m, n, k] = std::tuple{product.m, product.n, product.k};
  ENGINE_RETURN_IF_ERROR(layout(&plan->a, factors, product.a_transposed ? k : m,
                                product.a_transposed ? m : k, product.a_stride));
  ENGINE_RETURN_IF_ERROR(layout(&plan->b, factors, product.b_transposed ? n : k,
                                product.b_transposed ? k : n, product.b_stride));
  return layout(&plan->d, result, m, n, product.d_stride);
}

// The alignments are promises about later operands too: a plan is for operands that keep them.
Status Blas::Propose(Plan* plan) noexcept {
  cublasLtMatmulPreference_t raw = nullptr;
  ENGINE_RETURN_IF_ERROR(
      BlasStatus(cublasLtMatmulPreferenceCreate(&raw), "asking cuBLASLt for algorithms"));
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        decltype([](cublasLtMatmulPreference_t preference) {
                          static_cast<void>(cublasLtMatmulPreferenceDestroy(preference));
                        })>
      preference(raw);
  ENGINE_RETURN_IF_ERROR(
      Set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes)));
  // A sum in parts that are kept in the type of the result would be rounded more than once.
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  if (plan->product.result == DType::kFloat32) schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  if (settings_.tune == Tune::kBits) schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes));
  const auto [a, b, d, bias, aux] = plan->alignments;
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b));
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a));
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d));
  ENGINE_RETURN_IF_ERROR(Set(raw, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d));

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
  ENGINE_RETURN_IF_ERROR(BlasStatus(status, "asking cuBLASLt for algorithms"));
  const size_t wanted = settings_.tune == Tune::kTime ? kCandidates : 1;
  for (int i = 0; i < count && plan->candidates.size() < wanted; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= kWorkspaceBytes) {
      plan->candidates.push_back(results[i].algo);
    }
  }
  return {};
}

// Device and library; extents, transposes, types and what else the description has; alignments.
std::string Blas::KeyOf(const Plan& plan) const noexcept {
  const MatrixProduct& product = plan.product;
  const auto [a, b, d, bias, aux] = plan.alignments;
  char key[512];
  snprintf(key, sizeof key,
           "%s, %d multiprocessors, cuBLASLt %zu: %lldx%lldx%lld %c%c %s to %s%s epilogue %d%s, "
           "aligned %u %u %u %u %u",
           device_.description(), device_.multiprocessors(), cublasLtGetVersion(),
           static_cast<long long>(product.m), static_cast<long long>(product.n),
           static_cast<long long>(product.k), product.a_transposed ? 't' : 'n',
           product.b_transposed ? 't' : 'n', Name(product.factors), Name(product.result),
           settings_.tf32 ? " tf32" : "", static_cast<int>(product.epilogue),
           product.sum ? " added" : "", a, b, d, bias, aux);
  if (product.batch == 1) return key;
  snprintf(key + strlen(key), sizeof key - strlen(key), ", %lld times, apart %lld %lld %lld",
           static_cast<long long>(product.batch), static_cast<long long>(product.a_stride),
           static_cast<long long>(product.b_stride), static_cast<long long>(product.d_stride));
  return key;
}

// Whether the library can do what is described with an algorithm of the file.
bool Blas::Takes(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const noexcept {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle_, plan.description, plan.b, plan.a, plan.d, plan.d,
                                 &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= kWorkspaceBytes;
}

// Leaves one candidate.
Status Blas::Choose(Plan* plan, const MatrixOperands& operands, cudaStream_t stream) noexcept {
  std::vector<cublasLtMatmulAlgo_t>& candidates = plan->candidates;
  std::optional<size_t> fastest;
  ENGINE_RETURN_IF_ERROR(Measure(
      *plan, operands, stream, candidates.size(),
      [&](size_t i, const MatrixOperands& scratch) {
        return Run(*plan, candidates[i], scratch, stream);
      },
      &fastest));
  cublasLtMatmulAlgo_t chosen = candidates[fastest.value_or(0)];
  if (fastest) file_.Keep(KeyOf(*plan), &chosen);
  candidates = {Takes(*plan, chosen) ? chosen : candidates[fastest.value_or(0)]};
  return {};
}

// `fastest` stays empty when there is no memory to measure with; there may be in another run.
Status Blas::Measure(const Plan& plan, const MatrixOperands& operands, cudaStream_t stream,
                     size_t count, const Way& run, std::optional<size_t>* fastest) noexcept {
  MatrixOperands scratch = operands;
  // What is added to may not be added to several times. Memory in the order of the stream: nothing
  // waits for it, and no other stream.
  if (plan.product.sum) {
    const int64_t elements =
        plan.product.m * plan.product.n + (plan.product.batch - 1) * plan.product.d_stride;
    const size_t bytes = static_cast<size_t>(elements) * SizeOf(plan.product.result);
    if (cudaMallocFromPoolAsync(&scratch.d, bytes, device_.arena(), stream) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return {};
    }
  }
  size_t way = 0;
  const Status status = FindFastest(
      device_, stream, count, [&](size_t i) { return run(i, scratch); }, &way);
  if (plan.product.sum) static_cast<void>(cudaFreeAsync(scratch.d, stream));
  ENGINE_RETURN_IF_ERROR(status);
  ++measured_;
  *fastest = way;
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
  const float beta = plan.product.sum ? 1.0f : 0.0f;
  return BlasStatus(cublasLtMatmul(handle_, plan.description, &operands.scale, operands.b, plan.b,
                                   operands.a, plan.a, &beta, operands.d, plan.d, operands.d,
                                   plan.d, &algorithm, workspace_, kWorkspaceBytes, stream),
                    "a matrix product of cuBLASLt");
}

}  // namespace engine::cuda_ops
