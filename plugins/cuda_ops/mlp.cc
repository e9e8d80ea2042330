// mlp: y = proj(gelu(fc(x))) with linear layers fc and proj; y is as wide as x. One op, as the
// product that gives the gradient of gelu's value can take it through gelu.
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
    Add(signature, "fc.weight", Shape{units_, width}, fc_scale_);
    Add(signature, "fc.bias", Shape{units_}, 0);
    Add(signature, "proj.weight", Shape{width, units_}, proj_scale_);
    Add(signature, "proj.bias", Shape{width}, 0);
    signature->saved_bytes = 2 * HiddenBytes(rows);
    signature->workspace_bytes =
        HiddenBytes(rows) + std::max(SumsBytes(rows, units_), SumsBytes(rows, width));
    signature->differentiable_inputs = 0b11111;
    signature->accumulates = 0b11111;
    signature->backward_reads_inputs = 1u << kX | 1u << kFc | 1u << kProj;
    signature->backward_reads_outputs = 0;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer fc = Fc(call);
    if (fc.rows == 0) return {};
    const bool saves = call.saved != nullptr;
    void* const hidden = saves ? Behind(call.saved, fc) : call.workspace;
    ENGINE_RETURN_IF_ERROR(Project(call, fc, saves ? Epilogue::kGeluAuxBias : Epilogue::kGeluBias,
                                   call.inputs[kX].data, call.saved, hidden, stream));
    return Project(call, Proj(fc), Epilogue::kBias, hidden, nullptr, call.outputs[0].data, stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    const Layer fc = Fc(call), proj = Proj(fc);
    for (int32_t i = kFc; fc.rows == 0 && i <= kProj + 1; ++i) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, i, stream));
    }
    if (fc.rows == 0) return {};
    const void* const dy = call.output_grads[0].data;
    void* const sums = Behind(call.workspace, fc);
    ENGINE_RETURN_IF_ERROR(
        ParameterGradients(call, proj, Behind(call.saved, fc), dy, sums, stream));
    if (!WantsGradient(call, kX) && !WantsGradient(call, kFc) && !WantsGradient(call, kFc + 1)) {
      return {};
    }
    const TensorView dbefore{call.workspace, {}, activation()};
    ENGINE_RETURN_IF_ERROR(InputGradient(call, proj, dy, call.saved, dbefore, false, stream));
    ENGINE_RETURN_IF_ERROR(
        ParameterGradients(call, fc, call.inputs[kX].data, dbefore.data, sums, stream));
    if (!WantsGradient(call, kX)) return {};
    return InputGradient(call, fc, dbefore.data, nullptr, call.input_grads[kX],
                         Accumulates(call, kX), stream);
  }

 private:
  Layer Fc(const OpCall& call) const noexcept {
    const Shape& shape = call.inputs[kX].shape;
    return {shape.Count(0, -1), shape[-1], units_, kFc, kFc + 1};
  }
  static Layer Proj(const Layer& fc) noexcept {
    return {fc.rows, fc.units, fc.width, kProj, kProj + 1};
  }

  int64_t HiddenBytes(int64_t rows) const noexcept { return AlignedBytes(rows * units_); }
  void* Behind(void* memory, const Layer& fc) const noexcept {
    return static_cast<char*>(memory) + HiddenBytes(fc.rows);
  }

  void Add(OpSignature* signature, const FixedString<32>& name, const Shape& shape,
           float scale) const noexcept {
    ParameterSpec& parameter = AddParameter(signature, shape);
    parameter.name = name;
    parameter.initializer = scale > 0 ? Initializer::kNormal : Initializer::kZeros;
    parameter.scale = scale;
    parameter.decay = shape.ndim == 2;
    parameter.dtype = activation();
  }

  const int64_t units_;
  const float fc_scale_, proj_scale_;
};

}  // namespace

Op* MakeMlp(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) MlpOp(context, attributes);
}

}  // namespace engine::cuda_ops
