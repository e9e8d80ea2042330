// to_channels_last: (B, C, H, W), planes as datasets have them, to (B, H, W, C). flatten: (B, ...)
// to (B, product of the rest), for which all are positions of one channel. With one channel the
// result is another shape for the same memory, but a float32 batch of a bfloat16 run is rounded on
// the way.

#include "cuda_op.h"
#include "kernels/channels.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

template <bool kFlattens>
class ReshapeOp final : public CudaOp {
 public:
  using CudaOp::CudaOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    ENGINE_RETURN_IF_ERROR(kFlattens ? kit::InferFlatten(inference)
                                     : kit::InferToChannelsLast(inference));
    const Shape& x = inputs[0].shape;
    channels_ = kFlattens ? 1 : x[1];
    positions_ = x.Count(kFlattens ? 1 : 2);
    is_view_ = signature->output_is_view_of == 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (is_view_) return {};
    return Transpose(call.inputs[0], call.outputs[0], channels_, positions_, false, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& dy = call.output_grads[0];
    const TensorView& dx = call.input_grads[0];
    if (is_view_) return PassGradient(dy, dx, Accumulates(call, 0), stream);
    return Transpose(dy, dx, positions_, channels_, Accumulates(call, 0), stream);
  }

 private:
  // Matrices of rows x columns, one per sample, to their transposes.
  Status Transpose(const TensorView& from, const TensorView& to, int64_t rows, int64_t columns,
                   bool sum, cudaStream_t stream) const noexcept {
    return WithElement(from.dtype, [&](auto source) {
      return WithElement(to.dtype, [&](auto target) {
        return Launched(LaunchTranspose(As<const decltype(source)>(from), As<decltype(target)>(to),
                                        from.shape[0], rows, columns, sum, stream),
                        "transposition");
      });
    });
  }

  int64_t channels_ = 0, positions_ = 0;
  bool is_view_ = false;
};

}  // namespace

const OpFactory kMakeFlatten = kit::NewOp<ReshapeOp<true>>;
const OpFactory kMakeToChannelsLast = kit::NewOp<ReshapeOp<false>>;

}  // namespace engine::cuda_ops
