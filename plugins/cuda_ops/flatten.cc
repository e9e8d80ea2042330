// (B, ...) -> (B, product of the rest): another shape for the same memory. A float32 batch of a
// bfloat16 run is rounded on the way.
#include <new>

#include "kernels/channels.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

class FlattenOp final : public CudaOp {
 public:
  using CudaOp::CudaOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferFlatten(Inferring(inputs, signature)));
    is_view_ = signature->output_is_view_of == 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (is_view_) return {};
    return Launched(
        LaunchCast(call.inputs[0].f32(), static_cast<__nv_bfloat16*>(call.outputs[0].data),
                   call.inputs[0].count(), false, stream),
        "rounding to bfloat16");
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& dy = call.output_grads[0];
    const TensorView& dx = call.input_grads[0];
    if (is_view_) return PassGradient(dy, dx, Accumulates(call, 0), stream);
    return Launched(LaunchCast(static_cast<const __nv_bfloat16*>(dy.data), dx.f32(), dx.count(),
                               Accumulates(call, 0), stream),
                    "gradient in float32");
  }

 private:
  bool is_view_ = true;
};

}  // namespace

Op* MakeFlatten(const OpContext& context, const Options&) noexcept {
  return new (std::nothrow) FlattenOp(context);
}

}  // namespace engine::cuda_ops
