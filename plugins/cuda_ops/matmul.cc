// matmul: y (..., M, N) = scale a (..., M, K) b (..., K, N); dimensions before these broadcast.
#include <utility>

#include "batched_products.h"
#include "cuda_op.h"
#include "kit/array_op_shapes.h"

namespace engine::cuda_ops {
namespace {

class MatmulOp final : public kit::ShapedOp<CudaOp, kit::MatmulRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView &a = call.inputs[kA], &b = call.inputs[kB], &y = call.outputs[0];
    const int32_t axes = y.shape.ndim - 2;
    BatchedProduct product = ProductFor(y);
    product.m = y.shape[-2];
    product.n = y.shape[-1];
    product.k = given_.K(a.shape);
    product.a = Over(a, axes, given_.transpose_a);
    product.b = Over(b, axes, given_.transpose_b);
    product.d = Over(y, axes, false);
    if (product.IsEmpty()) return {};
    return Multiply(blas(), product, stream).WithContext("%s", name());
  }

  // With A and B for a and b as they are stored and op() for what is asked of them,
  //   op(A): dA = dy op(B)^T, or, transposed, op(B) dy^T
  //   op(B): dB = op(A)^T dy, or, transposed, dy^T op(A).
  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    for (const int32_t input : {kA, kB}) {
      if (!WantsGradient(call, static_cast<size_t>(input))) continue;
      const TensorView& dx = call.input_grads[static_cast<size_t>(input)];
      const TensorView &a = call.inputs[kA], &b = call.inputs[kB], &dy = call.output_grads[0];
      const int32_t axes = dy.shape.ndim - 2;
      const int64_t m = dy.shape[-2], n = dy.shape[-1], k = given_.K(a.shape);
      BatchedProduct product = ProductFor(dy);
      product.result = dx.dtype;
      product.sum = Accumulates(call, input);
      product.d = Over(dx, axes, false);
      const bool of_a = input == kA;
      const bool transposed = of_a ? given_.transpose_a : given_.transpose_b;
      product.m = of_a ? m : k;
      product.n = of_a ? k : n;
      product.k = of_a ? n : m;
      product.a = of_a ? Over(dy, axes, false) : Over(a, axes, !given_.transpose_a);
      product.b = of_a ? Over(b, axes, !given_.transpose_b) : Over(dy, axes, false);
      if (transposed) {  // the transpose of that product
        std::swap(product.m, product.n);
        std::swap(product.a, product.b);
        product.a.transposed = !product.a.transposed;
        product.b.transposed = !product.b.transposed;
      }
      ENGINE_RETURN_IF_ERROR(product.IsEmpty()
                                 ? ZeroGradient(call, input, stream)
                                 : Multiply(blas(), product, stream).WithContext("%s", name()));
    }
    return {};
  }

  static constexpr int32_t kA = 0, kB = 1;

  // But for the matrices.
  BatchedProduct ProductFor(const TensorView& y) const noexcept {
    BatchedProduct product;
    product.axes = y.shape.ndim - 2;
    for (int32_t i = 0; i < product.axes; ++i) product.extents[i] = y.shape[i];
    product.factors = activation();
    product.result = y.dtype;
    product.scale = given_.scale;
    return product;
  }

  // The matrices of x over the leading dimensions of the result.
  static MatrixBatch Over(const TensorView& x, int32_t axes, bool transposed) noexcept {
    MatrixBatch batch = {.data = x.data, .transposed = transposed};
    int64_t stride = x.shape[-1] * x.shape[-2];
    for (int32_t i = x.shape.ndim - 3; i >= 0; --i) {
      const int32_t axis = i + axes - (x.shape.ndim - 2);
      if (x.shape[i] != 1) batch.strides[axis] = stride;
      stride *= x.shape[i];
    }
    return batch;
  }
};

}  // namespace

const OpFactory kMakeMatmul = kit::NewOp<MatmulOp>;

}  // namespace engine::cuda_ops
