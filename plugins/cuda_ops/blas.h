// Products of matrices with cuBLASLt.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "blas_tune.h"
#include "cuda_device.h"
#include "engine/status.h"
#include "engine/tensor.h"

namespace engine::cuda_ops {

// What is done to a product before it is stored, or beside it; the numbers are cuBLASLt's.
enum class Epilogue : int32_t {
  kNone = CUBLASLT_EPILOGUE_DEFAULT,
  kBias = CUBLASLT_EPILOGUE_BIAS,           // + bias (n)
  kGeluBias = CUBLASLT_EPILOGUE_GELU_BIAS,  // gelu(product + bias), the approximation with tanh
  kGeluAuxBias = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,  // the same; `aux` (m, n) gets product + bias
  kGeluGradient = CUBLASLT_EPILOGUE_DGELU,         // product * gelu'(aux), with the `aux` of before
  // `bias` (m) gets the sums of op(a) over k: the first factor here is the second there.
  kBiasGradient = CUBLASLT_EPILOGUE_BGRADB,
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
  // So many products, whose matrices begin so many elements apart; a stride of 0 repeats a factor.
  int64_t batch = 1;
  int64_t a_stride = 0, b_stride = 0, d_stride = 0;

  bool operator==(const MatrixProduct&) const noexcept = default;
};

// Device memory.
struct MatrixOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* bias = nullptr;
  void* aux = nullptr;
  float scale = 1;  // of the product
};

// Which of the algorithms that the library proposes is taken.
enum class Tune : int32_t {
  kOff = 0,   // the first proposal
  kBits = 1,  // the first one that does not split sums: each element is added up in one go
  kTime = 2,  // the fastest by measurement, kept in a file
};

// One per device and library. [any-thread]; calls on several streams at a time are not allowed, as
// they share the workspace.
class Blas {
 public:
  struct Settings {
    bool tf32 = false;  // factors in float32 are rounded to 10 bits
    Tune tune = Tune::kOff;
    std::string tune_file;  // see TuneFile
    Host* host = nullptr;   // gets sentences about that file; null: nobody does
  };

  // kDevice with a sentence when cuBLASLt cannot be set up. Its workspace is allocated with the
  // first product.
  static Status Create(CudaDevice& device, const Settings& settings,
                       std::unique_ptr<Blas>* out) noexcept;
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // Whether to leave the epilogue to the library: whether it has an algorithm for that, by the
  // shape and the alignment of the operands (plain products it does in any case). With kTime it is
  // measured against `in_steps`, unless that is empty, which does all of the product in another
  // way; see Multiply.
  using InSteps = std::function<Status(const MatrixOperands& operands)>;
  Result<bool> Fuses(const MatrixProduct& product, const MatrixOperands& operands,
                     cudaStream_t stream, const InSteps& in_steps) noexcept;

  // Queues the product. With kTime, the first call of a shape that is not in the file, outside of a
  // recording, waits for the stream while it measures; d is written several times then, and the
  // other operands must not change.
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
  Status Choose(Plan* plan, const MatrixOperands& operands, cudaStream_t stream) noexcept;
  using Way = std::function<Status(size_t way, const MatrixOperands& operands)>;
  Status Measure(const Plan& plan, const MatrixOperands& operands, cudaStream_t stream,
                 size_t count, const Way& run, std::optional<size_t>* fastest) noexcept;
  std::string KeyOf(const Plan& plan) const noexcept;
  bool Takes(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const noexcept;
  static Status SetEpiloguePointers(const Plan& plan, const MatrixOperands& operands) noexcept;
  Status Run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
             const MatrixOperands& operands, cudaStream_t stream) noexcept;

  CudaDevice& device_;
  const Settings settings_;
  cublasLtHandle_t handle_ = nullptr;

  std::recursive_mutex mutex_;
  void* workspace_ = nullptr;                 // guarded by mutex_
  std::vector<std::unique_ptr<Plan>> plans_;  // guarded by mutex_, as is their content
  TuneFile file_;                             // guarded by mutex_
  int32_t measured_ = 0;                      // guarded by mutex_
};

}  // namespace engine::cuda_ops
