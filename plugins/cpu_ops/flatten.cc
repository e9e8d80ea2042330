// (B, ...) -> (B, product of the rest): another shape for the same memory.
#include <new>
#include <span>

#include "ops.h"

namespace engine::cpu_ops {
namespace {

class FlattenOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferFlatten(Inferring(inputs, signature));
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
