// What ops made of linear layers share: y = x W^T + b and its gradients as products of cuBLASLt,
// with all that can be done in their epilogues done there.
#pragma once

#include "blas.h"
#include "cuda_op.h"

namespace engine::cuda_ops {

class ProductOp : public CudaOp {
 protected:
  using CudaOp::CudaOp;

  // x (rows, width), W (units, width), b (units).
  struct Layer {
    int64_t rows, width, units;
    int32_t weight, bias;  // which inputs they are; an op may have no input `bias`
  };

  // Of so many activations, up to the alignment of parts of saved memory and workspace.
  int64_t AlignedBytes(int64_t count) const noexcept;
  // Of the workspace of ParameterGradients.
  int64_t SumsBytes(int64_t rows, int64_t units) const noexcept;

  // What `epilogue` makes of x W^T, which is its `aux`.
  Status Project(const OpCall& call, const Layer& layer, Epilogue epilogue, const void* x,
                 void* aux, void* y, cudaStream_t stream) const noexcept;
  // Of the weight and the bias, as far as they are wanted.
  Status ParameterGradients(const OpCall& call, const Layer& layer, const void* x, const void* dy,
                            void* workspace, cudaStream_t stream) const noexcept;
  // dx = dy W, added to what is there when `sum`; unless `before` is null, times gelu'(before).
  Status InputGradient(const OpCall& call, const Layer& layer, const void* dy, void* before,
                       const TensorView& dx, bool sum, cudaStream_t stream) const noexcept;

 private:
  MatrixProduct Product(int64_t m, int64_t n, int64_t k, DType result) const noexcept;
  // `partials` of sums, for kBiasGradient.
  Status Multiply(const MatrixProduct& product, const MatrixOperands& operands, float* partials,
                  cudaStream_t stream) const noexcept;
  // The product, and then what its epilogue is to do.
  template <typename T>
  Status MultiplyInSteps(MatrixProduct product, MatrixOperands operands, float* partials,
                         cudaStream_t stream) const noexcept;
};

}  // namespace engine::cuda_ops
