// cuBLASLt's matrices are column-major, so a row-major matrix is its transpose there: d = a b is
// asked for as d^T = b^T a^T, with b as the first factor ("A") and n, m as the extents of d^T.
#include "blas.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include "cuda_error.h"
#include "kernels/fingerprint.h"

namespace engine::cuda_ops {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kCandidates = 8;
constexpr int kRepetitions = 4;
// A later proposal must be this much faster than an earlier one: what differs by less differs from
// run to run.
constexpr float kClearlyFaster = 0.98f;
constexpr std::chrono::seconds kMeasureTimeout{60};
// Alignments beyond this make no difference to cuBLASLt's kernels.
constexpr uint32_t kLargestAlignment = 16;

Status BlasStatus(cublasStatus_t status, const char* what) noexcept {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return Status::Error(
      status == CUBLAS_STATUS_ALLOC_FAILED ? StatusCode::kResourceExhausted : StatusCode::kDevice,
      "%s: %s", what, cublasLtGetStatusString(status));
}

#define CUDA_OPS_RETURN_IF_BLAS_ERROR(expression, what) \
  ENGINE_RETURN_IF_ERROR(BlasStatus((expression), what))

cudaDataType_t TypeOf(DType dtype) noexcept {
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

uint32_t AlignmentOf(const void* pointer) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uint32_t alignment = kLargestAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

struct Alignments {
  uint32_t a, b, d, bias, aux;

  explicit Alignments(const MatrixOperands& operands) noexcept
      : a(AlignmentOf(operands.a)),
        b(AlignmentOf(operands.b)),
        d(AlignmentOf(operands.d)),
        bias(AlignmentOf(operands.bias)),
        aux(AlignmentOf(operands.aux)) {}
  bool operator==(const Alignments&) const noexcept = default;
};

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
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
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

class TimedEvent {
 public:
  ~TimedEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }

  Status Record(cudaStream_t stream) noexcept {
    if (event_ == nullptr) CUDA_OPS_RETURN_IF_ERROR(cudaEventCreate(&event_), "creating an event");
    CUDA_OPS_RETURN_IF_ERROR(cudaEventRecord(event_, stream), "recording an event");
    return {};
  }

  Status Wait() noexcept {
    const auto deadline = std::chrono::steady_clock::now() + kMeasureTimeout;
    cudaError_t error = cudaEventQuery(event_);
    while (error == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() > deadline) {
        return Status::Error(StatusCode::kTimeout, "the device did not do %d products in %lld s",
                             kRepetitions, static_cast<long long>(kMeasureTimeout.count()));
      }
      std::this_thread::yield();
      error = cudaEventQuery(event_);
    }
    return ToStatus(error, "measuring a matrix product");
  }

  Status Since(const TimedEvent& begin, float* milliseconds) const noexcept {
    return ToStatus(cudaEventElapsedTime(milliseconds, begin.event_, event_),
                    "measuring a matrix product");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory of a device for as long as this lives.
class Scratch {
 public:
  explicit Scratch(CudaDevice& device) noexcept : device_(device) {}
  ~Scratch() {
    if (data_ != nullptr) device_.Free(data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  Status Allocate(size_t size_bytes) noexcept { return device_.Allocate(size_bytes, &data_); }
  void* data() const noexcept { return data_; }

 private:
  CudaDevice& device_;
  void* data_ = nullptr;
};

// Of one algorithm: of d, then of aux.
constexpr size_t kParts = 2 * kFingerprintParts;

bool IsRecording(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

// Of the algorithms with the bits of the first one that runs, the fastest; with none, the first.
// The parts behind those of the algorithms are of a product of zeros, in which all are alike,
// whatever they do with others: then the first, too.
size_t FastestAlike(const std::vector<float>& milliseconds, const std::vector<uint64_t>& parts) {
  const auto runs = [](float time) { return std::isfinite(time); };
  const auto first = static_cast<size_t>(
      std::find_if(milliseconds.begin(), milliseconds.end(), runs) - milliseconds.begin());
  if (first == milliseconds.size()) return 0;
  const auto bits = [&](size_t i) { return parts.begin() + static_cast<ptrdiff_t>(i * kParts); };
  const auto of_zeros = bits(milliseconds.size());
  if (std::equal(of_zeros, of_zeros + kFingerprintParts, bits(first))) return first;
  size_t chosen = first;
  for (size_t i = first + 1; i < milliseconds.size(); ++i) {
    const bool alike = std::equal(bits(i), bits(i) + kParts, bits(first));
    if (alike && milliseconds[i] < milliseconds[chosen] * kClearlyFaster) chosen = i;
  }
  return chosen;
}

}  // namespace

// What cuBLASLt is told about one shape, and its proposals, best guess first.
struct Blas::Plan {
  MatrixProduct product;
  Alignments alignments;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  std::vector<cublasLtMatmulAlgo_t> candidates;  // empty: there is no algorithm
  size_t chosen = 0;
  bool measured = false;

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

  size_t result_bytes() const noexcept {
    return static_cast<size_t>(product.m) * static_cast<size_t>(product.n) * SizeOf(product.result);
  }
};

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
  if (product.epilogue == Epilogue::kGeluAuxBias) {
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

Status Blas::Tune(Plan* plan, const MatrixOperands& operands, cudaStream_t stream) noexcept {
  plan->measured = true;
  const size_t count = plan->candidates.size();
  if (count <= 1) return {};
  // What is added to may not be added to several times.
  MatrixOperands scratch = operands;
  Scratch result(device_), parts(device_);
  if (plan->product.sum) {
    if (!result.Allocate(plan->result_bytes()).ok()) return {};  // the first proposal, then
    scratch.d = result.data();
  }
  std::vector<uint64_t> host_parts((count + 1) * kParts);  // the last of a product of zeros
  const size_t parts_bytes = host_parts.size() * sizeof(uint64_t);
  ENGINE_RETURN_IF_ERROR(parts.Allocate(parts_bytes));
  CUDA_OPS_RETURN_IF_ERROR(cudaMemsetAsync(parts.data(), 0, parts_bytes, stream),
                           "measuring a matrix product");

  const auto parts_of = [&](size_t i) { return static_cast<uint64_t*>(parts.data()) + i * kParts; };
  if (!plan->product.sum) {
    CUDA_OPS_RETURN_IF_ERROR(cudaMemsetAsync(scratch.d, 0, plan->result_bytes(), stream),
                             "measuring a matrix product");
  }
  CUDA_OPS_RETURN_IF_ERROR(LaunchFingerprint(operands.d, static_cast<int64_t>(plan->result_bytes()),
                                             parts_of(count), stream),
                           "measuring a matrix product");

  // An algorithm that does not run after all takes for ever.
  std::vector<float> milliseconds(count, std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < count; ++i) {
    if (!Rehearse(*plan, plan->candidates[i], operands, scratch, parts_of(i), stream).ok()) {
      continue;
    }
    const Status status = Measure(*plan, plan->candidates[i], scratch, stream, &milliseconds[i]);
    if (!status.ok()) milliseconds[i] = std::numeric_limits<float>::infinity();
  }
  TimedEvent end;
  ENGINE_RETURN_IF_ERROR(end.Record(stream));
  ENGINE_RETURN_IF_ERROR(end.Wait());
  CUDA_OPS_RETURN_IF_ERROR(
      cudaMemcpy(host_parts.data(), parts.data(), parts_bytes, cudaMemcpyDeviceToHost),
      "measuring a matrix product");
  plan->chosen = FastestAlike(milliseconds, host_parts);
  return {};
}

// The result once, and what its bits are. The first run of an algorithm is not one to measure.
Status Blas::Rehearse(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                      const MatrixOperands& operands, const MatrixOperands& scratch,
                      uint64_t* parts, cudaStream_t stream) noexcept {
  const size_t size_bytes = plan.result_bytes();
  if (plan.product.sum) {
    CUDA_OPS_RETURN_IF_ERROR(
        cudaMemcpyAsync(scratch.d, operands.d, size_bytes, cudaMemcpyDeviceToDevice, stream),
        "measuring a matrix product");
  }
  ENGINE_RETURN_IF_ERROR(Run(plan, algorithm, scratch, stream));
  CUDA_OPS_RETURN_IF_ERROR(
      LaunchFingerprint(scratch.d, static_cast<int64_t>(size_bytes), parts, stream),
      "measuring a matrix product");
  if (plan.product.epilogue != Epilogue::kGeluAuxBias) return {};
  return ToStatus(LaunchFingerprint(scratch.aux, static_cast<int64_t>(size_bytes),
                                    parts + kFingerprintParts, stream),
                  "measuring a matrix product");
}

Status Blas::Measure(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                     const MatrixOperands& operands, cudaStream_t stream,
                     float* milliseconds) noexcept {
  TimedEvent begin, end;
  ENGINE_RETURN_IF_ERROR(begin.Record(stream));
  for (int i = 0; i < kRepetitions; ++i) {
    ENGINE_RETURN_IF_ERROR(Run(plan, algorithm, operands, stream));
  }
  ENGINE_RETURN_IF_ERROR(end.Record(stream));
  ENGINE_RETURN_IF_ERROR(end.Wait());
  return end.Since(begin, milliseconds);
}

// They are part of the description, which mutex_ guards.
Status Blas::SetEpiloguePointers(const Plan& plan, const MatrixOperands& operands) noexcept {
  if (plan.product.epilogue == Epilogue::kNone) return {};
  ENGINE_RETURN_IF_ERROR(Set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias));
  if (plan.product.epilogue != Epilogue::kGeluAuxBias) return {};
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
