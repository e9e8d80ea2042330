// Handles, proposals of algorithms, products.
#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/emulated_cuda/cublaslt/problem.h"
#include "tests/emulated_cuda/runtime.h"

using emulated_cuda::At;
using emulated_cuda::Check;
using emulated_cuda::MatmulPreference;
using emulated_cuda::MatrixLayout;
using emulated_cuda::Operands;
using emulated_cuda::Problem;

#define EMULATED_CUBLASLT_ENTER()                                                                 \
  do {                                                                                            \
    if (const int code = emulated_cuda_fault(__func__)) return static_cast<cublasStatus_t>(code); \
  } while (false)

namespace {

constexpr int kCandidates = 3;
constexpr int64_t kLongSum = 5000;  // from which the first proposal is one in parts
// No kernel makes use of more.
constexpr uint32_t kLargestAlignment = 16;
constexpr uint64_t kMark = 0x656d756c61746564;  // an algorithm of this library

struct Handle {
  uint64_t mark = kMark;
};

// What is in a cublasLtMatmulAlgo_t: candidate i adds i + 1 partial sums, for which it needs
// workspace.
struct Algorithm {
  uint64_t mark = kMark;
  uint64_t problem = 0;  // Problem::Hash
  uint64_t candidate = 0;
  uint64_t workspace_bytes = 0;
  uint32_t alignments[4] = {};  // that it counts on: a, b, c, d
  uint64_t unused[2] = {};
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

Problem MakeProblem(cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {At(description), At(a), At(b), At(c), At(d)};
}

// The bytes from the first element to the last.
size_t Extent(const MatrixLayout& layout) {
  const auto last = (layout.batch - 1) * layout.stride +
                    static_cast<int64_t>(layout.columns - 1) * layout.ld +
                    static_cast<int64_t>(layout.rows);
  return static_cast<size_t>(last) * emulated_cuda::SizeOf(layout.type);
}

// A device would stop with an illegal address.
void CheckMemory(const Problem& p, const Operands& operands) {
  const auto check = [](const void* data, size_t size_bytes, const char* what) {
    if (!emulated_cuda_is_device_range(data, size_bytes)) emulated_cuda_fail(what);
  };
  check(operands.a, Extent(p.a), "matrix A of a product is not in device memory");
  check(operands.b, Extent(p.b), "matrix B of a product is not in device memory");
  check(operands.d, Extent(p.d), "matrix D of a product is not in device memory");
  if (operands.beta != 0) {
    check(operands.c, Extent(p.c), "matrix C of a product is not in device memory");
  }
  const size_t size = emulated_cuda::SizeOf(p.d.type);
  if (p.uses_bias()) {
    check(p.description.bias, static_cast<size_t>(p.bias_count()) * size,
          "the bias of a product is not in device memory");
  }
  if (p.has_aux()) {
    const int64_t count = (p.n() - 1) * p.description.aux_ld + p.m();
    check(p.description.aux, static_cast<size_t>(count) * size,
          "the auxiliary matrix of a product is not in device memory");
  }
}

bool IsAligned(const void* data, uint32_t alignment) {
  return reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

cublasStatus_t CheckAlgorithm(const Algorithm& algorithm, const Problem& problem,
                              const Operands& operands, const void* workspace,
                              size_t workspace_bytes) {
  if (algorithm.mark != kMark) return CUBLAS_STATUS_INVALID_VALUE;
  const void* const matrices[4] = {operands.a, operands.b,
                                   operands.beta != 0 ? operands.c : nullptr, operands.d};
  for (int i = 0; i < 4; ++i) {
    if (!IsAligned(matrices[i], algorithm.alignments[i])) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (algorithm.problem != problem.Hash()) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (algorithm.workspace_bytes > workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
  const bool has_workspace = algorithm.workspace_bytes == 0 ||
                             (IsAligned(workspace, 16) &&
                              emulated_cuda_is_device_range(workspace, algorithm.workspace_bytes));
  return has_workspace ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// How many bytes candidate `i` needs, or nothing if the preference forbids it.
bool IsWanted(const MatmulPreference& preference, const Algorithm& algorithm) {
  const bool splits = algorithm.candidate > 0;
  return algorithm.workspace_bytes <= preference.workspace_bytes &&
         (!splits || (preference.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0);
}

bool ElementsAreAligned(const MatmulPreference& preference, const Problem& p) {
  const uint32_t types[4] = {p.a.type, p.b.type, p.c.type, p.d.type};
  for (int i = 0; i < 4; ++i) {
    if (preference.alignments[i] % emulated_cuda::SizeOf(types[i]) != 0) return false;
  }
  return true;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* out) {
  EMULATED_CUBLASLT_ENTER();
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *out = reinterpret_cast<cublasLtHandle_t>(new Handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<Handle*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() {
  return CUBLAS_VERSION;
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "another cuBLAS status";
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  EMULATED_CUBLASLT_ENTER();
  *count = 0;
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!description || !preference || wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem = MakeProblem(description, a, b, c, d);
  if (const cublasStatus_t status = Check(problem)) return status;
  const MatmulPreference& limits = At(preference);
  if (!ElementsAreAligned(limits, problem)) return CUBLAS_STATUS_NOT_SUPPORTED;

  const int first = problem.k() >= kLongSum ? 1 : 0;
  for (int i = first; i < first + kCandidates && *count < wanted; ++i) {
    Algorithm algorithm;
    algorithm.problem = problem.Hash();
    algorithm.candidate = static_cast<uint64_t>(i % kCandidates);
    if (algorithm.candidate > 0) {
      algorithm.workspace_bytes =
          static_cast<uint64_t>(problem.m() * problem.n()) * (algorithm.candidate + 1) * 4;
    }
    for (int j = 0; j < 4; ++j) {
      algorithm.alignments[j] = std::min(limits.alignments[j], kLargestAlignment);
    }
    if (!IsWanted(limits, algorithm)) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*count)++];
    result = {};
    result.algo = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
    result.workspaceSize = algorithm.workspace_bytes;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  EMULATED_CUBLASLT_ENTER();
  const auto algorithm = std::bit_cast<Algorithm>(*algo);
  const bool fits =
      algorithm.mark == kMark && algorithm.problem == MakeProblem(description, a, b, c, d).Hash();
  result->workspaceSize = algorithm.workspace_bytes;
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  EMULATED_CUBLASLT_ENTER();
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!description || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem = MakeProblem(description, a_layout, b_layout, c_layout, d_layout);
  if (const cublasStatus_t status = Check(problem)) return status;
  const Operands operands = {
      *static_cast<const float*>(alpha), *static_cast<const float*>(beta), a, b, c, d};
  Algorithm algorithm;
  if (algo) {
    algorithm = std::bit_cast<Algorithm>(*algo);
    const cublasStatus_t status =
        CheckAlgorithm(algorithm, problem, operands, workspace, workspace_bytes);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  CheckMemory(problem, operands);
  const cudaError_t error = emulated_cuda::Enqueue(stream, [=] {
    // What a kernel leaves there is not for others.
    if (algorithm.workspace_bytes > 0) std::memset(workspace, 0xff, algorithm.workspace_bytes);
    Multiply(problem, operands, static_cast<int>(algorithm.candidate) + 1);
    return cudaSuccess;
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
