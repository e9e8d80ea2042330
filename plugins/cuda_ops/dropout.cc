// dropout as kit/op_shapes.h has it. The masks are those of kernels/dropout.h, so Backward computes
// them again.
#include "kernels/dropout.h"

#include <algorithm>
#include <cmath>

#include "cuda_op.h"
#include "engine/ext/accelerator.h"

namespace engine::cuda_ops {
namespace {

class DropoutOp final : public kit::ShapedOp<CudaOp, kit::DropoutRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    if (Identity() || call.training == 0) return PassGradient(x, y, false, stream);
    return Apply(call, x, y, false, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView &dy = call.output_grads[0], &dx = call.input_grads[0];
    if (Identity()) return PassGradient(dy, dx, Accumulates(call, 0), stream);
    return Apply(call, dy, dx, Accumulates(call, 0), stream);
  }

  bool Identity() const noexcept { return given_.rate == 0.0; }

  Status Apply(const OpCall& call, const TensorView& source, const TensorView& target, bool sum,
               cudaStream_t stream) const noexcept {
    const double threshold = std::min(std::round(given_.rate * 0x1p32), 0x1p32 - 1);
    const StepScalars* const scalars = call.scalars;
    const DropoutMask mask = {
        .seed = call.seed,
        .step = call.step,
        .node = call.node,
        .first_sample = call.first_sample,
        .step_word = scalars == nullptr ? nullptr : &scalars->step,
        .first_sample_word = scalars == nullptr ? nullptr : &scalars->first_sample,
        // What is not cut into samples is the same on all ranks.
        .sample_size = given_.batched ? static_cast<uint64_t>(source.shape.Count(1)) : 0,
        .threshold = static_cast<uint32_t>(threshold),
        .scale = static_cast<float>(1.0 / (1.0 - given_.rate))};
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(
          LaunchDropout(mask, As<const T>(source), As<T>(target), sum, source.count(), stream),
          "mask");
    });
  }
};

}  // namespace

const OpFactory kMakeDropout = kit::NewOp<DropoutOp>;

}  // namespace engine::cuda_ops
