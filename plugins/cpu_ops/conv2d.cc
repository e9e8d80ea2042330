// conv2d: y = x * weight + b over channels-last tensors: x (B, H, W, C), weight (K, K, C, O) and y
// (B, H', W', O), H' = (H + 2 padding - K) / stride + 1.
//
// PyTorch has the weight as (O, C, K, K): weight.permute(2, 3, 1, 0) is ours.
#include <algorithm>
#include <new>
#include <span>

#include "channel_kernels.h"
#include "conv_pass.h"
#include "cpu_op.h"

namespace engine::cpu_ops {
namespace {

class Conv2dOp final : public CpuOp {
 public:
  Conv2dOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferConv(Inferring(inputs, signature), given_));
    const Shape &x = inputs[kX].shape, &y = signature->outputs[0].shape;
    const Window& window = given_.window;
    input_ = {x[1], x[2], x[3]};
    output_ = {y[1], y[2], y[3]};
    try {
      forward_ = ConvPass(ConvPass::Direction::kForward, window, input_, output_);
      backward_ = ConvPass(ConvPass::Direction::kBackward, window, input_, output_);
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for its plan", name());
    }
    weight_ = ConvWeightPass(window, input_, output_);
    const size_t pass = std::max(forward_.workspace_bytes(x[0]), backward_.workspace_bytes(x[0]));
    signature->workspace_bytes = static_cast<int64_t>(
        std::max(pass * static_cast<size_t>(threads()), weight_.workspace_bytes(x[0])));
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    if (Samples(call) == 0) return {};
    forward_.Run({.source = call.inputs[kX].f32(),
                  .weight = call.inputs[kWeight].f32(),
                  .bias = given_.bias ? call.inputs[kBias].f32() : nullptr,
                  .target = call.outputs[0].f32(),
                  .samples = Samples(call),
                  .workspace = call.workspace},
                 threads());
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (Samples(call) == 0) {
      ZeroGradient(call, kWeight);
      if (given_.bias) ZeroGradient(call, kBias);
      return {};
    }
    const float* dy = call.output_grads[0].f32();
    if (WantsGradient(call, kBias)) {
      SumColumns(dy, Samples(call) * output_.positions(), given_.channels,
                 call.input_grads[kBias].f32(), Accumulates(call, kBias));
    }
    if (WantsGradient(call, kWeight)) {
      weight_.Run({.x = call.inputs[kX].f32(),
                   .dy = dy,
                   .dweight = call.input_grads[kWeight].f32(),
                   .samples = Samples(call),
                   .sum = Accumulates(call, kWeight),
                   .workspace = call.workspace},
                  threads());
    }
    if (WantsGradient(call, kX)) {
      backward_.Run({.source = dy,
                     .weight = call.inputs[kWeight].f32(),
                     .target = call.input_grads[kX].f32(),
                     .samples = Samples(call),
                     .sum = Accumulates(call, kX),
                     .workspace = call.workspace},
                    threads());
    }
    return {};
  }

 private:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  static int64_t Samples(const OpCall& call) noexcept { return call.inputs[kX].shape[0]; }

  const kit::ConvAttributes given_;
  Plane input_, output_;
  ConvPass forward_, backward_;
  ConvWeightPass weight_;
};

}  // namespace

const OpFactory kMakeConv2d = kit::NewOp<Conv2dOp>;

}  // namespace engine::cpu_ops
