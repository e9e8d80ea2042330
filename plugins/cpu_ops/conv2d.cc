// conv2d: y = x * weight + b over channels-last tensors: x (B, H, W, C), weight (KH, KW, C / groups,
// O) and y (B, H', W', O), H' = (H + padding - (KH - 1) dilation - 1) / stride + 1. PyTorch has the
// weight as (O, C / groups, KH, KW), which is its other layout.
//
// conv_transpose2d: what conv2d's gradient does with a dy, with a bias: x (B, H, W, C), weight (C, O
// / groups, KH, KW) as PyTorch has it, y (B, H', W', O). Its own gradients are conv2d's forward pass
// and the gradient of conv2d's weight with x and dy in each other's place.
#include <memory>
#include <new>
#include <type_traits>

#include "channel_kernels.h"
#include "conv_primitives.h"
#include "convolution.h"
#include "cpu_op.h"
#include "kit/image_op_shapes.h"

namespace engine::cpu_ops {
namespace {

template <bool kTransposed>
class ConvOp final : public CpuOp {
 public:
  ConvOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    bool oihw = true;
    if constexpr (kTransposed) {
      ENGINE_RETURN_IF_ERROR(kit::InferConvTranspose(inference, given_));
    } else {
      ENGINE_RETURN_IF_ERROR(kit::InferConv(inference, given_));
      oihw = given_.oihw;
    }
    const Shape &x = inputs[kX].shape, &y = signature->outputs[0].shape;
    const Plane input = {x[1], x[2], x[3]}, output = {y[1], y[2], y[3]};
    const ConvGeometry geometry = {.window = given_.window,
                                   .input = kTransposed ? output : input,
                                   .output = kTransposed ? input : output,
                                   .groups = given_.groups};
    try {
      if (!kTransposed && activation() == DType::kBFloat16 && x[0] > 0) {
        rounded_ = std::make_unique<ConvPrimitives>(geometry, oihw, given_.bias, threads());
        if (rounded_->Prepare(x[0])) {
          signature->workspace_bytes = static_cast<int64_t>(rounded_->workspace_bytes());
          return {};
        }
        rounded_ = nullptr;
      }
      conv_ = Convolution(geometry, oihw, threads(), x[0]);
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for its plan", name());
    }
    signature->workspace_bytes = static_cast<int64_t>(conv_.workspace_bytes());
    return {};
  }
  bool TakesBFloat16() const noexcept override { return rounded_ != nullptr; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    if (Samples(call) == 0) return {};
    if (rounded_ != nullptr) {
      return rounded_->Forward(name(), Samples(call), As<BFloat16>(call.inputs[kX]),
                               As<BFloat16>(call.inputs[kWeight]),
                               given_.bias ? As<BFloat16>(call.inputs[kBias]) : nullptr,
                               As<BFloat16>(call.outputs[0]), call.workspace);
    }
    conv_.Run(kForward, {.source = call.inputs[kX].f32(),
                         .weight = call.inputs[kWeight].f32(),
                         .bias = given_.bias ? call.inputs[kBias].f32() : nullptr,
                         .target = call.outputs[0].f32(),
                         .samples = Samples(call),
                         .workspace = call.workspace});
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (Samples(call) == 0) {
      ZeroGradient(call, kWeight);
      if (given_.bias) ZeroGradient(call, kBias);
      return {};
    }
    if (rounded_ != nullptr) return BackwardRounded(call);
    const float *x = call.inputs[kX].f32(), *dy = call.output_grads[0].f32();
    if (WantsGradient(call, kBias)) {
      SumColumns(dy, call.output_grads[0].shape.Count(0, -1), given_.channels,
                 call.input_grads[kBias].f32(), Accumulates(call, kBias));
    }
    if (WantsGradient(call, kWeight)) {
      conv_.AddWeights({.x = kTransposed ? dy : x,
                        .dy = kTransposed ? x : dy,
                        .dweight = call.input_grads[kWeight].f32(),
                        .samples = Samples(call),
                        .sum = Accumulates(call, kWeight),
                        .workspace = call.workspace});
    }
    if (WantsGradient(call, kX)) {
      conv_.Run(kBackward, {.source = dy,
                            .weight = call.inputs[kWeight].f32(),
                            .target = call.input_grads[kX].f32(),
                            .samples = Samples(call),
                            .sum = Accumulates(call, kX),
                            .workspace = call.workspace});
    }
    return {};
  }

  using Direction = ConvPass::Direction;
  static constexpr Direction kForward = kTransposed ? Direction::kBackward : Direction::kForward;
  static constexpr Direction kBackward = kTransposed ? Direction::kForward : Direction::kBackward;
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  static int64_t Samples(const OpCall& call) noexcept { return call.inputs[kX].shape[0]; }

  // The three gradients as in DoBackward; that of the weight is float32, the others' sums are.
  Status BackwardRounded(const OpCall& call) noexcept {
    const BFloat16* const dy = As<BFloat16>(call.output_grads[0]);
    if (WantsGradient(call, kBias)) {
      SumColumns(dy, call.output_grads[0].shape.Count(0, -1), given_.channels,
                 call.input_grads[kBias].f32(), Accumulates(call, kBias));
    }
    if (WantsGradient(call, kWeight)) {
      ENGINE_RETURN_IF_ERROR(rounded_->BackwardWeights(
          name(), Samples(call), As<BFloat16>(call.inputs[kX]), dy, call.input_grads[kWeight].f32(),
          Accumulates(call, kWeight), call.workspace));
    }
    if (!WantsGradient(call, kX)) return {};
    return rounded_->BackwardData(name(), Samples(call), dy, As<BFloat16>(call.inputs[kWeight]),
                                  As<BFloat16>(call.input_grads[kX]), Accumulates(call, kX),
                                  call.workspace);
  }

  const std::conditional_t<kTransposed, kit::ConvTransposeAttributes, kit::Conv2dAttributes> given_;
  Convolution conv_;                         // of float32
  std::unique_ptr<ConvPrimitives> rounded_;  // of bfloat16, where oneDNN is fast
};

}  // namespace

const OpFactory kMakeConv2d = kit::NewOp<ConvOp<false>>;
const OpFactory kMakeConvTranspose2d = kit::NewOp<ConvOp<true>>;

}  // namespace engine::cpu_ops
