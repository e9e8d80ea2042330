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

  // y = x W^T (+ b).
  Status Project(const OpCall& call, const Layer& layer, const void* x, void* y,
                 cudaStream_t stream) const noexcept;
  // y = gelu(before) with before = x W^T + b, which is kept unless it is null.
  Status ProjectGelu(const OpCall& call, const Layer& layer, const void* x, void* before, void* y,
                     cudaStream_t stream) const noexcept;

  // Of the weight and the bias, as far as they are wanted.
  Status ParameterGradients(const OpCall& call, const Layer& layer, const void* x, const void* dy,
                            void* workspace, cudaStream_t stream) const noexcept;
  // dx = dy W, added to what is there when `sum`.
  Status InputGradient(const OpCall& call, const Layer& layer, const void* dy, void* dx,
                       DType dx_type, bool sum, cudaStream_t stream) const noexcept;
  // dbefore = dy W * gelu'(before), for an x that is gelu(before).
  Status InputGradientOfGelu(const OpCall& call, const Layer& layer, const void* dy, void* before,
                             void* dbefore, cudaStream_t stream) const noexcept;

 private:
  MatrixProduct Product(int64_t m, int64_t n, int64_t k, DType result) const noexcept;
  // Whether the library is to do the epilogue too. Else it is an operation of its own.
  Result<bool> Fuses(const MatrixProduct& product, const MatrixOperands& operands) const noexcept;
  Status Multiply(const MatrixProduct& product, const MatrixOperands& operands,
                  cudaStream_t stream) const noexcept;
};

}  // namespace engine::cuda_ops
