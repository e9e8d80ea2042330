// softmax, log_softmax: y along an axis sums to 1, or its exponentials do.
#include "kernels/softmax.h"

#include <string_view>

#include "cuda_op.h"
#include "kit/array_op_shapes.h"

namespace engine::cuda_ops {
namespace {

class SoftmaxOp final : public kit::ShapedOp<CudaOp, kit::SoftmaxRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& y = call.outputs[0];
    return WithElement(y.dtype, [&]<typename T>(T) {
      return Launched(
          LaunchSoftmax(ShapeOf(y.shape), {}, As<const T>(call.inputs[0]), As<T>(y), stream),
          "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView &dx = call.input_grads[0], &dy = call.output_grads[0];
    const auto launch = [&]<typename T, typename To>(T, To) {
      return Launched(
          LaunchSoftmaxGradient(ShapeOf(dx.shape), As<const T>(call.outputs[0]), As<const T>(dy),
                                As<To>(dx), Accumulates(call, 0), stream),
          "backward");
    };
    return WithElement(dy.dtype, [&]<typename T>(T) {
      return dx.dtype == dy.dtype ? launch(T{}, T{}) : launch(T{}, float{});
    });
  }

  SoftmaxShape ShapeOf(const Shape& x) const noexcept {
    const int64_t length = x[given_.axis], inner = x.Count(given_.axis + 1);
    return {x.Count(0, given_.axis) * inner, length, inner,
            std::string_view(name()) == "log_softmax"};
  }
};

}  // namespace

const OpFactory kMakeSoftmax = kit::NewOp<SoftmaxOp>;
const OpFactory kMakeLogSoftmax = kit::NewOp<SoftmaxOp>;

}  // namespace engine::cuda_ops
