// layer_norm: y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension
// (Ba, Kiros and Hinton, arXiv:1607.06450). add_layer_norm: output 0 is a + b, output 1 the
// layer_norm of that. rms_norm (Zhang and Sennrich, arXiv:1910.07467): the same with a mean of 0 and
// without bias. Saved for backward: mean and 1 / deviation of each row.
#include "kernels/layer_norm.h"

#include "cuda_op.h"
#include "kernels/channels.h"
#include "kit/array_op_shapes.h"

namespace engine::cuda_ops {
namespace {

// Inputs are x, of add_layer_norm its addend, weight and, but for rms_norm, bias.
enum class Kind { kLayerNorm, kAddLayerNorm, kRmsNorm };

template <Kind kKind>
class NormOp final : public CudaOp {
 public:
  NormOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context), epsilon_(static_cast<float>(attributes.Float("epsilon"))) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    ENGINE_RETURN_IF_ERROR(kAdds      ? kit::InferAddLayerNorm(inference)
                           : kCentred ? kit::InferLayerNorm(inference)
                                      : kit::InferRmsNorm(inference));
    const int64_t rows = Rows(inputs[kX].shape), width = inputs[kX].shape[-1];
    signature->saved_bytes = rows * static_cast<int64_t>(sizeof(RowStatistics));
    signature->workspace_bytes = 2 * Parts(rows) * width * static_cast<int64_t>(sizeof(float));
    return {};
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&]<typename T>(T) {
      const TensorView& x = call.inputs[kX];
      const LayerNormForward<T> forward = {
          .x = As<const T>(x),
          .addend = kAdds ? As<const T>(call.inputs[kAddend]) : nullptr,
          .sum = kAdds ? As<T>(call.outputs[kSum]) : nullptr,
          .weight = call.inputs[kWeight].f32(),
          .bias = kCentred ? call.inputs[kBias].f32() : nullptr,
          .y = As<T>(call.outputs[kY]),
          .statistics = static_cast<RowStatistics*>(call.saved),
          .rows = Rows(x.shape),
          .width = x.shape[-1],
          .epsilon = epsilon_,
          .centred = kCentred};
      return Launched(LaunchLayerNorm(forward, stream), "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&]<typename T>(T) {
      if constexpr (kAdds) {
        return BackwardOfSum<T>(call, stream);
      } else {
        return BackwardInto<T>(call, WantsGradient(call, kX) ? kX : kNone, stream);
      }
    });
  }

  static constexpr bool kAdds = kKind == Kind::kAddLayerNorm, kCentred = kKind != Kind::kRmsNorm;
  static constexpr int32_t kX = 0, kAddend = 1, kWeight = kAdds ? 2 : 1, kBias = kWeight + 1;
  static constexpr int32_t kSum = 0, kY = kAdds ? 1 : 0;  // outputs
  static constexpr int32_t kNone = -1;

  static int64_t Rows(const Shape& x) noexcept { return x.Count(0, -1); }
  int64_t Parts(int64_t rows) const noexcept {
    return LayerNormParts(rows, device().multiprocessors());
  }

  // Both inputs have the same gradient: one is computed, the other copied, unless they share their
  // memory.
  template <typename T>
  Status BackwardOfSum(const OpCall& call, cudaStream_t stream) const noexcept {
    // Only the sum was of use: its gradient is what its inputs get.
    if (call.output_grads[kY].data == nullptr) return PassSum(call, stream);
    const int32_t first = FirstTarget(call);
    ENGINE_RETURN_IF_ERROR(BackwardInto<T>(call, first, stream));
    if (first == kNone || !WantsGradient(call, static_cast<size_t>(1 - first))) return {};
    const TensorView& from = call.input_grads[static_cast<size_t>(first)];
    const TensorView& to = call.input_grads[static_cast<size_t>(1 - first)];
    if (!Accumulates(call, first) || from.data == to.data) {
      return PassGradient(from, to, Accumulates(call, 1 - first), stream);
    }
    // Both are added to something: once more, without the parameters, which have theirs.
    OpCall again = call;
    again.input_grads.count = kWeight;
    return BackwardInto<T>(again, 1 - first, stream);
  }

  // An input that wants a gradient, rather one whose gradient is written, not added to.
  static int32_t FirstTarget(const OpCall& call) noexcept {
    const bool x = WantsGradient(call, kX), addend = WantsGradient(call, kAddend);
    if (x && addend) return Accumulates(call, kX) ? kAddend : kX;
    return x ? kX : (addend ? kAddend : kNone);
  }

  // The gradients of the parameters and of `input`.
  template <typename T>
  Status BackwardInto(const OpCall& call, int32_t input, cudaStream_t stream) const noexcept {
    const TensorView& normalised = kAdds ? call.outputs[kSum] : call.inputs[kX];
    const int64_t rows = Rows(normalised.shape), width = normalised.shape[-1];
    if (rows == 0) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
      return ZeroGradient(call, kBias, stream);
    }
    const bool parameters = WantsGradient(call, kWeight) || WantsGradient(call, kBias);
    const LayerNormBackward<T> backward = {
        .x = As<const T>(normalised),
        .weight = call.inputs[kWeight].f32(),
        .dy = As<const T>(call.output_grads[kY]),
        .dsum = kAdds ? As<const T>(call.output_grads[kSum]) : nullptr,
        .statistics = static_cast<const RowStatistics*>(call.saved),
        .dx = input == kNone ? nullptr : As<T>(call.input_grads[static_cast<size_t>(input)]),
        .sum = input != kNone && Accumulates(call, input),
        .partials = parameters ? static_cast<float*>(call.workspace) : nullptr,
        .rows = rows,
        .width = width,
        .parts = Parts(rows),
        .centred = kCentred};
    ENGINE_RETURN_IF_ERROR(Launched(LaunchLayerNormGradient(backward, stream), "backward"));
    ENGINE_RETURN_IF_ERROR(AddParts(call, kWeight, backward.parts, stream));
    return AddParts(call, kBias, backward.parts, stream);
  }

  // Partial sums of the weight and of the bias alternate.
  Status AddParts(const OpCall& call, int32_t input, int64_t parts,
                  cudaStream_t stream) const noexcept {
    if (!WantsGradient(call, static_cast<size_t>(input))) return {};
    const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
    const int64_t width = gradient.count();
    const auto* const partials = static_cast<const float*>(call.workspace);
    return Launched(LaunchAddParts(partials + (input - kWeight) * width, parts, 2 * width, width,
                                   gradient.f32(), Accumulates(call, input), stream),
                    "backward");
  }

  static Status PassSum(const OpCall& call, cudaStream_t stream) noexcept {
    for (int32_t input : {kX, kAddend}) {
      ENGINE_RETURN_IF_ERROR(PassGradient(call, call.output_grads[kSum], input, stream));
    }
    ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
    return ZeroGradient(call, kBias, stream);
  }

  const float epsilon_;
};

}  // namespace

const OpFactory kMakeLayerNorm = kit::NewOp<NormOp<Kind::kLayerNorm>>;
const OpFactory kMakeAddLayerNorm = kit::NewOp<NormOp<Kind::kAddLayerNorm>>;
const OpFactory kMakeRmsNorm = kit::NewOp<NormOp<Kind::kRmsNorm>>;

}  // namespace engine::cuda_ops
