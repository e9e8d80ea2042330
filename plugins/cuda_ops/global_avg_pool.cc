// global_avg_pool: the mean of each channel over all positions, (B, ..., C) to (B, C).
#include <new>

#include "engine/image_op_shapes.h"
#include "kernels/channels.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

class GlobalAvgPoolOp final : public CudaOp {
 public:
  using CudaOp::CudaOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferGlobalAvgPool(Inferring(inputs, signature)));
    positions_ = inputs[0].shape.Count(1, -1);
    channels_ = inputs[0].shape[-1];
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
