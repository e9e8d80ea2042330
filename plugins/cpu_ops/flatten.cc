// (B, ...) -> (B, product of the rest): another shape for the same memory.
#include <new>

#include "ops.h"

namespace engine::cpu_ops {
namespace {

class FlattenOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    const TensorSpec& x = inputs[0];
    if (x.dtype != DType::kFloat32 || x.shape.ndim < 1) {
      return InputError(inputs, 0, "float32 (B, ...)");
    }
    AddOutput(signature, Shape{x.shape[0], x.shape.Count(1)}, x.batched);
    signature->differentiable_inputs = 1;
    signature->accumulates = 1;
    signature->passes_gradient = 1;
    signature->backward_reads_inputs = 0;
    signature->backward_reads_outputs = 0;
    signature->output_is_view_of = 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall&) noexcept override { return {}; }

  Status DoBackward(const OpCall& call) noexcept override {
    if (WantsGradient(call, 0)) {
      PassGradient(call.output_grads[0], call.input_grads[0], Accumulates(call, 0));
    }
    return {};
  }
};

}  // namespace

Op* MakeFlatten(const OpContext& context, const Options&) noexcept {
  return new (std::nothrow) FlattenOp(context);
}

}  // namespace engine::cpu_ops
