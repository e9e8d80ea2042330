// The sum over targets of -log softmax(logits)[target], their number, and how many are the first
// largest logit. Saved for backward: log(sum(exp(logits))) of each row, so that it reads the logits
// once and writes the gradient. Where the gradient has the memory of the logits, Forward has it all
// but for its factor when it knows the loss, and writes it.
#include "kernels/loss.h"

#include "cuda_op.h"
#include "kit/loss_shapes.h"

namespace engine::cuda_ops {
namespace {

class SoftmaxCrossEntropyOp final : public CudaOp {
 public:
  using CudaOp::CudaOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferSoftmaxCrossEntropy(Inferring(inputs, signature)).status());
    const int64_t rows = inputs[kTargets].shape.Count();
    signature->saved_bytes = rows * static_cast<int64_t>(sizeof(float));
    signature->workspace_bytes = rows * static_cast<int64_t>(sizeof(RowLoss));
    signature->gradient_in_place = 1u << kLogits;
    return ToStatus(cudaDeviceGetAttribute(&shared_bytes_, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                           device().ordinal()),
                    "asking for the shared memory of a block");
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    auto* const losses = static_cast<RowLoss*>(call.workspace);
    const TensorView &logits = call.inputs[kLogits], &targets = call.inputs[kTargets];
    const bool writes_gradient = call.training != 0 && IsInPlace(call);
    ENGINE_RETURN_IF_ERROR(WithElement(activation(), [&]<typename T>(T) {
      return Launched(
          LaunchRowLosses(As<const T>(logits), targets.i32(), targets.count(), logits.shape[-1],
                          losses, static_cast<float*>(call.saved),
                          writes_gradient ? As<T>(logits) : nullptr,
                          shared_bytes_ - kReservedShared, device().fault_word(), stream),
          "forward");
    }));
    return Launched(LaunchSumLosses(losses, targets.count(), call.outputs[0].f32(), stream),
                    "forward");
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, kLogits)) return {};
    const TensorView &logits = call.inputs[kLogits], &targets = call.inputs[kTargets];
    return WithElement(activation(), [&]<typename T>(T) {
      if (IsInPlace(call)) {
        const TensorView& gradient = call.input_grads[kLogits];
        return Launched(LaunchScaleLossGradient(call.output_grads[0].f32(), As<T>(gradient),
                                                gradient.count(), stream),
                        "backward");
      }
      return Launched(LaunchLossGradient(
                          As<const T>(logits), targets.i32(), static_cast<const float*>(call.saved),
                          call.output_grads[0].f32(), targets.count(), logits.shape[-1],
                          As<T>(call.input_grads[kLogits]), Accumulates(call, kLogits), stream),
                      "backward");
    });
  }

 private:
  static constexpr int32_t kLogits = 0, kTargets = 1;
  static constexpr int kReservedShared = 1024;  // of a block, by the system and for sums

  static bool IsInPlace(const OpCall& call) noexcept {
    return (call.gradient_in_place >> kLogits & 1u) != 0;
  }

  int shared_bytes_ = 0;
};

}  // namespace

const OpFactory kMakeSoftmaxCrossEntropy = kit::NewOp<SoftmaxCrossEntropyOp>;

}  // namespace engine::cuda_ops
