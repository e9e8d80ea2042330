// rotary_embedding: pairs of columns are turned by an angle that grows with the position (Su et al.,
// arXiv:2104.09864).
#include "kernels/rotary.h"

#include "cuda_op.h"
#include "kit/array_op_shapes.h"

namespace engine::cuda_ops {
namespace {

class RotaryOp final : public kit::ShapedOp<CudaOp, kit::RotaryRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return Turn(call, call.inputs[0], call.outputs[0], false, false, stream);
  }
  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    return Turn(call, call.output_grads[0], call.input_grads[0], true, Accumulates(call, 0),
                stream);
  }

  Status Turn(const OpCall& call, const TensorView& x, const TensorView& y, bool backward, bool sum,
              cudaStream_t stream) const noexcept {
    const RotaryShape shape = {x.shape.Count(0, -1), x.shape[-2], x.shape[-1], given_.interleaved};
    const auto launch = [&]<typename T, typename To>(T, To) {
      return Launched(LaunchRotary(shape, As<const T>(x), As<const T>(call.inputs[1]),
                                   As<const T>(call.inputs[2]), As<To>(y), backward, sum, stream),
                      "rotation");
    };
    return WithElement(x.dtype, [&]<typename T>(T) {
      return x.dtype == y.dtype ? launch(T{}, T{}) : launch(T{}, float{});
    });
  }
};

}  // namespace

const OpFactory kMakeRotaryEmbedding = kit::NewOp<RotaryOp>;

}  // namespace engine::cuda_ops
