// mlp: y = gelu(x W^T + b) V^T + c, with W and b called fc, V and c proj: y is as wide as x. One
// op, as the product that gives the gradient of gelu's value can take it through gelu.
#include <algorithm>
#include <new>

#include "ops.h"
#include "product_op.h"

namespace engine::cuda_ops {
namespace {

constexpr int32_t kX = 0, kFc = 1, kProj = 3;  // each weight is followed by its bias

// Saved: what gelu is applied to, and its value, both (rows, units).
class MlpOp final : public ProductOp {
 public:
  MlpOp(const OpContext& context, const Options& attributes) noexcept
      : ProductOp(context),
        units_(attributes.Int("units")),
        fc_scale_(static_cast<float>(attributes.Float("init_scale"))),
        proj_scale_(static_cast<float>(attributes.Float("proj_init_scale"))) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    const TensorSpec& x = inputs[kX];
    if (!IsActivation(x) || x.shape.ndim < 2 || x.shape[-1] < 1) {
      return ActivationError(inputs, kX, " (..., K), at least two dimensions, K >= 1");
    }
    const int64_t rows = x.shape.Count(0, -1), width = x.shape[-1];
    AddOutput(signature, x.shape, x.batched, activation());
    AddMatrix(signature, "fc.weight", Shape{units_, width}, fc_scale_);
    AddBias(signature, "fc.bias", units_);
    AddMatrix(signature, "proj.weight", Shape{width, units_}, proj_scale_);
    AddBias(signature, "proj.bias", width);
    const int64_t hidden_bytes = AlignedBytes(rows * units_);
    signature->saved_bytes = 2 * hidden_bytes;
    signature->workspace_bytes =
        hidden_bytes + std::max(SumsBytes(rows, units_), SumsBytes(rows, width));
    signature->differentiable_inputs = 0b11111;
    signature->accumulates = 0b11111;
    signature->backward_reads_inputs = 1u << kX | 1u << kFc | 1u << kProj;
    signature->backward_reads_outputs = 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layers layers(call, units_);
    if (layers.fc.rows == 0) return {};
    const bool saves = call.saved != nullptr;
    void* const hidden = saves ? Hidden(call, layers) : call.workspace;
    ENGINE_RETURN_IF_ERROR(
        ProjectGelu(call, layers.fc, call.inputs[kX].data, call.saved, hidden, stream));
    return Project(call, layers.proj, hidden, call.outputs[0].data, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layers layers(call, units_);
    if (layers.fc.rows == 0) {
      for (int32_t i = kFc; i <= kProj + 1; ++i) {
        ENGINE_RETURN_IF_ERROR(ZeroGradient(call, i, stream));
      }
      return {};
    }
    const void* const dy = call.output_grads[0].data;
    void* const dbefore = call.workspace;
    void* const sums = Behind(call.workspace, layers);
    ENGINE_RETURN_IF_ERROR(
        ParameterGradients(call, layers.proj, Hidden(call, layers), dy, sums, stream));
    if (!WantsGradient(call, kX) && !WantsGradient(call, kFc) && !WantsGradient(call, kFc + 1)) {
      return {};
    }
    ENGINE_RETURN_IF_ERROR(InputGradientOfGelu(call, layers.proj, dy, call.saved, dbefore, stream));
    ENGINE_RETURN_IF_ERROR(
        ParameterGradients(call, layers.fc, call.inputs[kX].data, dbefore, sums, stream));
    if (!WantsGradient(call, kX)) return {};
    return InputGradient(call, layers.fc, dbefore, call.input_grads[kX].data, activation(),
                         Accumulates(call, kX), stream);
  }

 private:
  struct Layers {
    Layer fc, proj;

    Layers(const OpCall& call, int64_t units) noexcept
        : fc{.rows = call.inputs[kX].shape.Count(0, -1),
             .width = call.inputs[kX].shape[-1],
             .units = units,
             .weight = kFc,
             .bias = kFc + 1},
          proj{.rows = fc.rows,
               .width = units,
               .units = fc.width,
               .weight = kProj,
               .bias = kProj + 1} {}
  };

  void* Behind(void* memory, const Layers& layers) const noexcept {
    return static_cast<char*>(memory) + AlignedBytes(layers.fc.rows * units_);
  }
  void* Hidden(const OpCall& call, const Layers& layers) const noexcept {
    return Behind(call.saved, layers);
  }

  void AddMatrix(OpSignature* signature, const FixedString<32>& name, const Shape& shape,
                 float scale) const noexcept {
    ParameterSpec& matrix = AddParameter(signature, shape);
    matrix.name = name;
    matrix.initializer = Initializer::kNormal;
    matrix.scale = scale;
    matrix.dtype = activation();
  }
  void AddBias(OpSignature* signature, const FixedString<32>& name, int64_t count) const noexcept {
    ParameterSpec& bias = AddParameter(signature, Shape{count});
    bias.name = name;
    bias.decay = 0;
    bias.dtype = activation();
  }

  const int64_t units_;
  const float fc_scale_, proj_scale_;
};

}  // namespace

Op* MakeMlp(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) MlpOp(context, attributes);
}

}  // namespace engine::cuda_ops
