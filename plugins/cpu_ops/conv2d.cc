// conv2d: y = x * weight + b over channels-last tensors: x (B, H, W, C), weight (K, K, C, O) and y
// (B, H', W', O), H' = (H + 2 padding - K) / stride + 1.
//
// PyTorch has the weight as (O, C, K, K): weight.permute(2, 3, 1, 0) is ours.
#include <cmath>
#include <new>

#include "columns.h"
#include "conv_pass.h"
#include "ops.h"

namespace engine::cpu_ops {
namespace {

class Conv2dOp final : public CpuOp {
 public:
  Conv2dOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context),
        channels_(attributes.Int("channels")),
        window_{attributes.Int("kernel"), attributes.Int("stride"), attributes.Int("padding")},
        bias_(attributes.Bool("bias")),
        kaiming_(attributes.String("init") == "kaiming") {
    if (window_.padding < 0) window_.padding = window_.kernel / 2;
  }

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    const TensorSpec& x = inputs[kX];
    if (x.dtype != DType::kFloat32 || x.shape.ndim != 4 || x.shape.Count(1) < 1) {
      return InputError(inputs, kX, "float32 (B, H, W, C), channels last");
    }
    input_ = {x.shape[1], x.shape[2], x.shape[3]};
    output_ = {window_.Positions(input_.height), window_.Positions(input_.width), channels_};
    if (window_.padding >= window_.kernel || output_.positions() < 1) {
      return Status::Error(
          StatusCode::kConfig,
          "%s: a kernel of %lld with padding %lld does not fit a plane of %lld x "
          "%lld; it must be larger than the padding and not larger than the "
          "padded plane",
          name(), static_cast<long long>(window_.kernel), static_cast<long long>(window_.padding),
          static_cast<long long>(input_.height), static_cast<long long>(input_.width));
    }
    try {
      forward_ = ConvPass(ConvPass::Direction::kForward, window_, input_, output_);
      backward_ = ConvPass(ConvPass::Direction::kBackward, window_, input_, output_);
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for its plan", name());
    }
    weight_ = ConvWeightPass(window_, input_, output_);
    Describe(x, signature);
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    if (Samples(call) == 0) return {};
    forward_.Run({.source = call.inputs[kX].f32(),
                  .weight = call.inputs[kWeight].f32(),
                  .bias = bias_ ? call.inputs[kBias].f32() : nullptr,
                  .target = call.outputs[0].f32(),
                  .samples = Samples(call),
                  .workspace = call.workspace},
                 threads());
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (Samples(call) == 0) {
      ZeroGradient(call, kWeight);
      if (bias_) ZeroGradient(call, kBias);
      return {};
    }
    const float* dy = call.output_grads[0].f32();
    if (WantsGradient(call, kBias)) {
      SumColumns(dy, Samples(call) * output_.positions(), channels_, call.input_grads[kBias].f32(),
                 Accumulates(call, kBias));
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

  void Describe(const TensorSpec& x, OpSignature* signature) const noexcept {
    AddOutput(signature, Shape{x.shape[0], output_.height, output_.width, channels_}, x.batched);
    AddWeight(signature);
    if (bias_) AddBias(signature);
    const size_t pass =
        std::max(forward_.workspace_bytes(x.shape[0]), backward_.workspace_bytes(x.shape[0]));
    signature->workspace_bytes = static_cast<int64_t>(
        std::max(pass * static_cast<size_t>(threads()), weight_.workspace_bytes(x.shape[0])));
    signature->differentiable_inputs = bias_ ? 0b111 : 0b11;
    signature->accumulates = signature->differentiable_inputs;
    signature->backward_reads_inputs = 1u << kX | 1u << kWeight;
    signature->backward_reads_outputs = 0;
  }

  // Uniform in +-1/sqrt(fan-in) is PyTorch's rule for nn.Conv2d; normal with variance 2 / fan-out
  // (He et al., arXiv:1502.01852) is what torchvision's residual nets start from.
  void AddWeight(OpSignature* signature) const noexcept {
    const int64_t kernel = window_.kernel;
    ParameterSpec& weight =
        AddParameter(signature, Shape{kernel, kernel, input_.channels, channels_});
    weight.name = "weight";
    weight.initializer = kaiming_ ? Initializer::kNormal : Initializer::kUniform;
    weight.scale = kaiming_ ? std::sqrt(2.0f / static_cast<float>(kernel * kernel * channels_))
                            : DefaultBound();
  }

  void AddBias(OpSignature* signature) const noexcept {
    ParameterSpec& bias = AddParameter(signature, Shape{channels_});
    bias.name = "bias";
    bias.initializer = kaiming_ ? Initializer::kZeros : Initializer::kUniform;
    bias.scale = kaiming_ ? 0.0f : DefaultBound();
    bias.decay = 0;
  }

  float DefaultBound() const noexcept {
    return 1.0f / std::sqrt(static_cast<float>(window_.kernel * window_.kernel * input_.channels));
  }

  const int64_t channels_;
  Window window_;
  const bool bias_, kaiming_;
  Plane input_, output_;
  ConvPass forward_, backward_;
  ConvWeightPass weight_;
};

}  // namespace

Op* MakeConv2d(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) Conv2dOp(context, attributes);
}

}  // namespace engine::cpu_ops
