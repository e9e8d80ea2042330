// softmax_cross_entropy: a row is read once, and log(sum(exp(logits))) is saved for backward, which
// reads the logits once and writes the gradient. Where the gradient has the memory of the logits,
// Forward has it all but for its factor when it knows the loss, and writes it.
// mean_squared_error, mean_absolute_error, huber, binary_cross_entropy: element by element.
#include "kernels/loss.h"

#include "cuda_op.h"
#include "kit/loss_shapes.h"

namespace engine::cuda_ops {
namespace {

class LossOp : public CudaOp {
 protected:
  LossOp(const OpContext& context, const kit::LossAttributes& given) noexcept
      : CudaOp(context), given_(given) {}

  void SetInputs(const kit::LossInputs& inputs, int64_t parts, OpSignature* signature) noexcept {
    inputs_ = inputs;
    signature->workspace_bytes = parts * static_cast<int64_t>(sizeof(RowLoss));
  }

  LossTerms TermsOf(const OpCall& call) const noexcept {
    const auto weights = [&](size_t input) {
      return input == 0 ? nullptr : static_cast<const float*>(call.inputs[input].f32());
    };
    return {.sample_weights = weights(inputs_.sample_weights),
            .targets_per_weight = inputs_.targets_per_weight,
            .factor = given_.weight,
            .auxiliary = given_.auxiliary,
            .class_weights = weights(inputs_.class_weights)};
  }

  static RowLoss* PartsOf(const OpCall& call) noexcept {
    return static_cast<RowLoss*>(call.workspace);
  }
  Status SumParts(const OpCall& call, int64_t parts, cudaStream_t stream) const noexcept {
    return Launched(
        LaunchSumLosses(PartsOf(call), parts, TermsOf(call), call.outputs[0].f32(), stream),
        "forward");
  }

 private:
  const kit::LossAttributes given_;
  kit::LossInputs inputs_;
};

class SoftmaxCrossEntropyOp final : public LossOp {
 public:
  SoftmaxCrossEntropyOp(const OpContext& context, const Options& attributes) noexcept
      : LossOp(context, kit::LossAttributes(attributes)), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_ASSIGN_OR_RETURN(const kit::LossInputs found,
                            kit::InferSoftmaxCrossEntropy(Inferring(inputs, signature)));
    const int64_t rows = inputs[kTargets].shape.Count();
    SetInputs(found, rows, signature);
    signature->saved_bytes = rows * static_cast<int64_t>(sizeof(float));
    signature->gradient_in_place = 1u << kLogits;
    return ToStatus(cudaDeviceGetAttribute(&shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                           device().ordinal()),
                    "asking for the shared memory of a block");
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView& logits = call.inputs[kLogits];
    const bool writes_gradient = call.training != 0 && IsInPlace(call);
    ENGINE_RETURN_IF_ERROR(WithElement(activation(), [&]<typename T>(T) {
      return Launched(
          LaunchRowLosses(CallOf(call, writes_gradient ? As<T>(logits) : nullptr), PartsOf(call),
                          shared_bytes_ - kReservedShared, device().fault_word(), stream),
          "forward");
    }));
    return SumParts(call, call.inputs[kTargets].count(), stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, kLogits)) return {};
    const TensorView& dx = call.input_grads[kLogits];
    const float* const scale = call.output_grads[0].f32();
    return WithElement(activation(), [&]<typename T>(T) {
      if (IsInPlace(call)) {
        return Launched(
            LaunchScaleLossGradient(scale, given_.weight, As<T>(dx), dx.count(), stream),
            "backward");
      }
      return Launched(
          LaunchLossGradient(CallOf(call, As<T>(dx)), scale, Accumulates(call, kLogits), stream),
          "backward");
    });
  }

  static constexpr int32_t kLogits = 0, kTargets = 1;
  static constexpr int kReservedShared = 1024;  // of a block, by the system and for sums

  static bool IsInPlace(const OpCall& call) noexcept {
    return (call.gradient_in_place >> kLogits & 1u) != 0;
  }

  template <typename T>
  SoftmaxLossCall<T> CallOf(const OpCall& call, T* dx) const noexcept {
    const TensorView &logits = call.inputs[kLogits], &targets = call.inputs[kTargets];
    LossTerms terms = TermsOf(call);
    terms.smoothing = given_.label_smoothing;
    terms.ignored = given_.ignore_index;
    return {As<const T>(logits),
            targets.i32(),
            targets.count(),
            logits.shape[-1],
            terms,
            static_cast<float*>(call.saved),
            dx};
  }

  const kit::SoftmaxCrossEntropyAttributes given_;
  int shared_bytes_ = 0;
};

template <ElementLoss kKind>
class ElementLossOp final : public LossOp {
 public:
  ElementLossOp(const OpContext& context, const Options& attributes) noexcept
      : LossOp(context, kit::LossAttributes(attributes)) {
    if (kKind == ElementLoss::kHuber) p_ = static_cast<float>(attributes.Float("delta"));
    if (kKind == ElementLoss::kBinary) p_ = static_cast<float>(attributes.Float("pos_weight"));
  }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    constexpr bool kBinary = kKind == ElementLoss::kBinary;
    ENGINE_ASSIGN_OR_RETURN(const kit::LossInputs found,
                            kit::InferElementLoss(Inferring(inputs, signature), kBinary));
    SetInputs(found, Parts(inputs[0].shape.Count()), signature);
    return {};
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    ENGINE_RETURN_IF_ERROR(WithElement(activation(), [&]<typename T>(T) {
      return Launched(
          LaunchElementLosses(CallOf<T>(call), PartsOf(call), device().fault_word(), stream),
          "forward");
    }));
    return SumParts(call, Parts(call.inputs[0].count()), stream);
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(
          LaunchElementLossGradient(CallOf<T>(call), call.output_grads[0].f32(),
                                    As<T>(call.input_grads[0]), Accumulates(call, 0), stream),
          "backward");
    });
  }

  static int64_t Parts(int64_t count) noexcept {
    return (count + kElementLossPart - 1) / kElementLossPart;
  }

  template <typename T>
  ElementLossCall<T> CallOf(const OpCall& call) const noexcept {
    const TensorView &x = call.inputs[0], &targets = call.inputs[1];
    return {kKind,     p_,           As<const T>(x), targets.data, targets.dtype == DType::kInt32,
            x.count(), TermsOf(call)};
  }

  float p_ = 0;
};

}  // namespace

const OpFactory kMakeSoftmaxCrossEntropy = kit::NewOp<SoftmaxCrossEntropyOp>;
const OpFactory kMakeMeanSquaredError = kit::NewOp<ElementLossOp<ElementLoss::kSquared>>;
const OpFactory kMakeMeanAbsoluteError = kit::NewOp<ElementLossOp<ElementLoss::kAbsolute>>;
const OpFactory kMakeHuber = kit::NewOp<ElementLossOp<ElementLoss::kHuber>>;
const OpFactory kMakeBinaryCrossEntropy = kit::NewOp<ElementLossOp<ElementLoss::kBinary>>;

}  // namespace engine::cuda_ops
