// Products of matrices with cuBLASLt, the fastest of its algorithms for each shape.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_device.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::cuda_ops {

// What is done to a product before it is stored, or beside it.
enum class Epilogue : int32_t {
  kNone = 0,
  kBias = 1,          // + bias (n)
  kGeluBias = 2,      // gelu(product + bias), the approximation with tanh
  kGeluAuxBias = 3,   // the same; `aux` (m, n) gets product + bias
  kGeluGradient = 4,  // product * gelu'(aux), with the `aux` of before
  kBiasGradient = 5,  // `bias` (m) gets the sums of op(a) over k
};

// d (m, n) = op(a) (m, k) op(b) (k, n), all dense and row-major. Sums are float32.
struct MatrixProduct {
  int64_t m = 0, n = 0, k = 0;  // all at least 1
  bool a_transposed = false;    // a is stored (k, m)
  bool b_transposed = false;    // b is stored (n, k)
  DType factors = DType::kFloat32;
  DType result = DType::kFloat32;  // of d, aux and bias
  Epilogue epilogue = Epilogue::kNone;
  bool sum = false;  // d += instead of d =; only with kNone and kBiasGradient

  bool operator==(const MatrixProduct&) const noexcept = default;
};

// Device memory.
struct MatrixOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* bias = nullptr;
  void* aux = nullptr;
};

// One per device and library. [any-thread]; calls on several streams at a time are not allowed, as
// they share the workspace.
class Blas {
 public:
  struct Settings {
    bool tf32 = false;  // factors in float32 are rounded to 10 bits
    // Whether the first call of a shape measures the algorithms that the library proposes and keeps
    // the fastest of those with the bits of the first proposal; else that one is taken. So results
    // do not depend on what was measured.
    bool tune = true;
  };

  // kDevice with a sentence when cuBLASLt cannot be set up. Its workspace is allocated with the
  // first product.
  static Status Create(CudaDevice& device, const Settings& settings,
                       std::unique_ptr<Blas>* out) noexcept;
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Whether the library has an algorithm for this: epilogues are not there for every type and
  // width, plain products are. Decided by the shape and the alignment of the operands.
  Result<bool> Supports(const MatrixProduct& product, const MatrixOperands& operands) noexcept;

  // Queues the product. The first call of a shape outside of a recording allocates, and waits for
  // the stream while it measures; d is written several times then, and the other operands must not
  // change.
  Status Multiply(const MatrixProduct& product, const MatrixOperands& operands,
                  cudaStream_t stream) noexcept;

  // How many shapes have been measured so far.
  int32_t measured() noexcept;

 private:
  struct Plan;

  Blas(CudaDevice& device, const Settings& settings) noexcept;

  Status Find(const MatrixProduct& product, const MatrixOperands& operands, Plan** out) noexcept;
  Status MakePlan(Plan* plan) noexcept;
  Status Propose(Plan* plan) noexcept;
  Status Tune(Plan* plan, const MatrixOperands& operands, cudaStream_t stream) noexcept;
  Status Rehearse(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                  const MatrixOperands& operands, const MatrixOperands& scratch, uint64_t* parts,
                  cudaStream_t stream) noexcept;
  Status Measure(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                 const MatrixOperands& operands, cudaStream_t stream, float* milliseconds) noexcept;
  static Status SetEpiloguePointers(const Plan& plan, const MatrixOperands& operands) noexcept;
  Status Run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
             const MatrixOperands& operands, cudaStream_t stream) noexcept;

  CudaDevice& device_;
  const Settings settings_;
  cublasLtHandle_t handle_ = nullptr;

  std::mutex mutex_;
  void* workspace_ = nullptr;                 // guarded by mutex_
  std::vector<std::unique_ptr<Plan>> plans_;  // guarded by mutex_, as is their content
};

}  // namespace engine::cuda_ops
