// FlatMath on one GPU.
#pragma once

#include <cstddef>
#include <string_view>

#include "engine/ext/accelerator.h"
#include "kernels/flat_math.h"

namespace engine::cuda_ops {

class CudaDevice;

class CudaFlatMath final : public FlatMathBase {
 public:
  explicit CudaFlatMath(CudaDevice& device) noexcept : device_(device) {}
  ~CudaFlatMath();
  // Memory for partial sums.
  Status Setup() noexcept;

  // "sgd", "adamw" (see kit::UpdateArray), "sum_of_squares", "clip_norm", "clip_value".
  FlatKernel* FindKernel(std::string_view name) noexcept override;
  Status FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                      Stream* stream) noexcept override;
  Status Convert(const void* source, DType from, void* target, DType to, int64_t count,
                 Stream* stream) noexcept override;
  Status Add(float* target, const float* source, int64_t count, Stream* stream) noexcept override;

 private:
  class Kernel final : public FlatKernelBase {
   public:
    using Function = Status (CudaFlatMath::*)(const FlatCall& call) noexcept;
    Kernel(CudaFlatMath& math, std::string_view name, size_t numbers, Function function) noexcept
        : name_(name), math_(math), numbers_(numbers), function_(function) {}
    std::string_view name() const noexcept { return name_; }
    Status Run(const FlatCall& call) noexcept override;

   private:
    const std::string_view name_;
    CudaFlatMath& math_;
    const size_t numbers_;  // in a call
    const Function function_;
  };

  Status Sgd(const FlatCall& call) noexcept;
  Status AdamW(const FlatCall& call) noexcept;
  Status Update(const FlatCall& call, const KernelRule& rule) noexcept;
  Status SumOfSquares(const FlatCall& call) noexcept;
  Status ClipNorm(const FlatCall& call) noexcept;
  Status ClipValue(const FlatCall& call) noexcept;

  CudaDevice& device_;
  double* partials_ = nullptr;  // of the sum under way: one stream at a time
  Kernel kernels_[5] = {{*this, "sgd", 2, &CudaFlatMath::Sgd},
                        {*this, "adamw", 3, &CudaFlatMath::AdamW},
                        {*this, "sum_of_squares", 0, &CudaFlatMath::SumOfSquares},
                        {*this, "clip_norm", 1, &CudaFlatMath::ClipNorm},
                        {*this, "clip_value", 1, &CudaFlatMath::ClipValue}};
};

}  // namespace engine::cuda_ops
