// to_channels_last: (B, C, H, W), planes as datasets have them, to (B, H, W, C). With one channel
// that is another shape for the same memory. A float32 batch of a bfloat16 run is rounded on the
// way.
#include <new>

#include "kernels/channels.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

class ToChannelsLastOp final : public CudaOp {
 public:
  using CudaOp::CudaOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    const TensorSpec& x = inputs[0];
    if ((!IsActivation(x) && x.dtype != DType::kFloat32) || x.shape.ndim != 4 ||
        x.shape.Count(1) < 1) {
      return ActivationError(inputs, 0, " (B, C, H, W)");
    }
    channels_ = x.shape[1];
    positions_ = x.shape.Count(2);
    AddOutput(signature, Shape{x.shape[0], x.shape[2], x.shape[3], channels_}, x.batched,
              activation());
    is_view_ = channels_ == 1 && IsActivation(x);
    signature->differentiable_inputs = 1;
    signature->accumulates = 1;
    signature->passes_gradient = is_view_ ? 1 : 0;
    signature->output_is_view_of = is_view_ ? 0 : -1;
    signature->backward_reads_inputs = 0;
    signature->backward_reads_outputs = 0;
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
        return Launched(LaunchTranspose(static_cast<const decltype(source)*>(from.data),
                                        static_cast<decltype(target)*>(to.data), from.shape[0],
                                        rows, columns, sum, stream),
                        "transposition");
      });
    });
  }

  int64_t channels_ = 0, positions_ = 0;
  bool is_view_ = false;
};

}  // namespace

Op* MakeToChannelsLast(const OpContext& context, const Options&) noexcept {
  return new (std::nothrow) ToChannelsLastOp(context);
}

}  // namespace engine::cuda_ops
