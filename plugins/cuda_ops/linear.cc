// linear: y = x W^T + b. tied_linear: the same with a second data input as W and no b.
//
// In bfloat16 an x in float32 (the batch itself) is rounded first; the copy is saved.
#include <algorithm>
#include <cmath>
#include <new>

#include "kernels/flat_math.h"
#include "ops.h"
#include "product_op.h"

namespace engine::cuda_ops {
namespace {

// Inputs are x (..., K), weight (N, K) and, maybe, bias (N).
class LinearOp : public ProductOp {
 public:
  using ProductOp::ProductOp;

 protected:
  static constexpr int32_t kX = 0, kWeight = 1, kBias = 2;

  // What all have in common once the number of units is known.
  void Describe(const TensorSpec& x, int64_t units, OpSignature* signature) noexcept {
    Shape shape = x.shape;
    shape[-1] = units;
    AddOutput(signature, shape, x.batched, activation());
    rounds_x_ = !IsActivation(x);
    const int64_t rows = shape.Count(0, -1);
    signature->saved_bytes = rounds_x_ ? AlignedBytes(rows * x.shape[-1]) : 0;
    signature->workspace_bytes = std::max(signature->saved_bytes, SumsBytes(rows, units));
    signature->backward_reads_inputs = (rounds_x_ ? 0u : 1u << kX) | 1u << kWeight;
    signature->backward_reads_outputs = 0;
  }

  bool AcceptsX(const TensorSpec& x) const noexcept {
    return (IsActivation(x) || x.dtype == DType::kFloat32) && x.shape.ndim >= 2 && x.shape[-1] >= 1;
  }
  Status XError(std::span<const TensorSpec> inputs) const noexcept {
    return InputError(inputs, kX,
                      activation() == DType::kFloat32
                          ? "float32 (..., K), at least two dimensions, K >= 1"
                          : "bfloat16 or float32 (..., K), at least two dimensions, K >= 1");
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer layer = LayerOf(call);
    if (layer.rows == 0) return {};
    const void* x = nullptr;
    ENGINE_RETURN_IF_ERROR(RoundX(call, layer, stream, &x));
    const Epilogue epilogue = call.inputs.size() > kBias ? Epilogue::kBias : Epilogue::kNone;
    return Project(call, layer, epilogue, x, nullptr, call.outputs[0].data, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer layer = LayerOf(call);
    if (layer.rows == 0) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
      return ZeroGradient(call, kBias, stream);
    }
    const void* const dy = call.output_grads[0].data;
    const void* const x = rounds_x_ ? call.saved : call.inputs[kX].data;
    ENGINE_RETURN_IF_ERROR(ParameterGradients(call, layer, x, dy, call.workspace, stream));
    if (!WantsGradient(call, kX)) return {};
    return InputGradient(call, layer, dy, nullptr, call.input_grads[kX], Accumulates(call, kX),
                         stream);
  }

 private:
  static Layer LayerOf(const OpCall& call) noexcept {
    const Shape& shape = call.inputs[kX].shape;
    return {shape.Count(0, -1), shape[-1], call.inputs[kWeight].shape[0], kWeight, kBias};
  }

  // x as a factor. In evaluation nothing is saved.
  Status RoundX(const OpCall& call, const Layer& layer, cudaStream_t stream,
                const void** out) const noexcept {
    *out = call.inputs[kX].data;
    if (!rounds_x_) return {};
    void* const rounded = call.saved != nullptr ? call.saved : call.workspace;
    *out = rounded;
    return Launched(
        LaunchConvert(static_cast<const float*>(call.inputs[kX].data),
                      static_cast<__nv_bfloat16*>(rounded), layer.rows * layer.width, stream),
        "rounding the input");
  }

  bool rounds_x_ = false;
};

class OwnedLinearOp final : public LinearOp {
 public:
  OwnedLinearOp(const OpContext& context, const Options& attributes) noexcept
      : LinearOp(context),
        units_(attributes.Int("units")),
        bias_(attributes.Bool("bias")),
        init_scale_(static_cast<float>(attributes.Float("init_scale"))) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    if (!AcceptsX(inputs[kX])) return XError(inputs);
    const int64_t width = inputs[kX].shape[-1];
    Describe(inputs[kX], units_, signature);
    AddWeight(width, signature);
    if (bias_) AddBias(width, signature);
    signature->differentiable_inputs = bias_ ? 0b111 : 0b11;
    signature->accumulates = signature->differentiable_inputs;
    return {};
  }

 private:
  // Uniform in +-1/sqrt(fan-in) is PyTorch's rule for nn.Linear, for weight and bias.
  static float DefaultBound(int64_t width) noexcept {
    return 1.0f / std::sqrt(static_cast<float>(width));
  }

  void AddWeight(int64_t width, OpSignature* signature) const noexcept {
    ParameterSpec& weight = AddParameter(signature, Shape{units_, width});
    weight.name = "weight";
    weight.initializer = init_scale_ > 0 ? Initializer::kNormal : Initializer::kUniform;
    weight.scale = init_scale_ > 0 ? init_scale_ : DefaultBound(width);
    weight.dtype = activation();
  }

  void AddBias(int64_t width, OpSignature* signature) const noexcept {
    ParameterSpec& bias = AddParameter(signature, Shape{units_});
    bias.name = "bias";
    bias.initializer = init_scale_ > 0 ? Initializer::kZeros : Initializer::kUniform;
    bias.scale = init_scale_ > 0 ? 0.0f : DefaultBound(width);
    bias.decay = 0;
    bias.dtype = activation();
  }

  const int64_t units_;
  const bool bias_;
  const float init_scale_;
};

class TiedLinearOp final : public LinearOp {
 public:
  using LinearOp::LinearOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 2));
    if (!AcceptsX(inputs[kX])) return XError(inputs);
    const TensorSpec& table = inputs[kWeight];
    if (!IsActivation(table) || table.shape.ndim != 2 || table.batched != 0 || table.shape[0] < 1 ||
        table.shape[1] != inputs[kX].shape[-1]) {
      return InputError(
          inputs, kWeight,
          activation() == DType::kFloat32
              ? "a parameter, float32 (V, K), with the K of input 0's last dimension"
              : "a parameter, bfloat16 (V, K), with the K of input 0's last dimension");
    }
    Describe(inputs[kX], table.shape[0], signature);
    signature->differentiable_inputs = 0b11;
    signature->accumulates = 0b11;
    return {};
  }
};

}  // namespace

Op* MakeLinear(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) OwnedLinearOp(context, attributes);
}

Op* MakeTiedLinear(const OpContext& context, const Options&) noexcept {
  return new (std::nothrow) TiedLinearOp(context);
}

}  // namespace engine::cuda_ops
