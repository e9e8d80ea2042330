// global_avg_pool: the mean of each channel over all positions, (B, ..., C) to (B, C).
#include <new>

#include "kernels/channels.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

class GlobalAvgPoolOp final : public CudaOp {
 public:
  using CudaOp::CudaOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    const TensorSpec& x = inputs[0];
    if (!IsActivation(x) || x.shape.ndim < 3 || x.shape.Count(1) < 1) {
      return ActivationError(inputs, 0, " (B, ..., C), channels last, at least three dimensions");
    }
    positions_ = x.shape.Count(1, -1);
    channels_ = x.shape[-1];
    AddOutput(signature, Shape{x.shape[0], channels_}, x.batched, activation());
    signature->differentiable_inputs = 1;
    signature->accumulates = 1;
    signature->backward_reads_inputs = 0;
    signature->backward_reads_outputs = 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return Launched(LaunchPositionMeans(static_cast<const T*>(call.inputs[0].data),
                                          static_cast<T*>(call.outputs[0].data),
                                          call.inputs[0].shape[0], positions_, channels_, stream),
                      "means over positions");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return Launched(LaunchPositionMeansGradient(static_cast<const T*>(call.output_grads[0].data),
                                                  static_cast<T*>(call.input_grads[0].data),
                                                  call.inputs[0].shape[0], positions_, channels_,
                                                  Accumulates(call, 0), stream),
                      "gradient of means over positions");
    });
  }

 private:
  int64_t positions_ = 0, channels_ = 0;
};

}  // namespace

Op* MakeGlobalAvgPool(const OpContext& context, const Options&) noexcept {
  return new (std::nothrow) GlobalAvgPoolOp(context);
}

}  // namespace engine::cuda_ops
