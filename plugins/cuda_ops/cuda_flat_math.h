// FlatMath on one GPU.
#pragma once

#include "engine/ext/accelerator.h"

namespace engine::cuda_ops {

class CudaDevice;

class CudaFlatMath final : public FlatMath {
 public:
  explicit CudaFlatMath(CudaDevice& device) noexcept : device_(device) {}
  ~CudaFlatMath();
  // Memory for partial sums.
  Status Setup() noexcept;

  Status Update(std::span<const UpdateSpan> spans, const UpdateRule& rule,
                const StepScalars* scalars, Stream* stream) noexcept override;
  Status SumOfSquares(std::span<const ScaledSpan> spans, float* sum,
                      Stream* stream) noexcept override;
  Status ScaleToNorm(std::span<const ScaledSpan> spans, const float* square, float max_norm,
                     Stream* stream) noexcept override;
  Status ClampValue(float* data, int64_t count, const float* scale, float limit,
                    Stream* stream) noexcept override;
  Status FillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                      Stream* stream) noexcept override;
  Status Convert(const void* source, DType from, void* target, DType to, int64_t count,
                 Stream* stream) noexcept override;
  Status Add(float* target, const float* source, int64_t count, Stream* stream) noexcept override;

 private:
  CudaDevice& device_;
  double* partials_ = nullptr;  // of the sum under way: one stream at a time
};

}  // namespace engine::cuda_ops
