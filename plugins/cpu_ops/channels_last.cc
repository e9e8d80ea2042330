// to_channels_last: (B, C, H, W), planes as datasets have them, to (B, H, W, C). flatten: (B, ...)
// to (B, product of the rest), for which all are positions of one channel. With one channel the
// result is another shape for the same memory.
#include <span>

#include "cpu_op.h"
#include "kit/image_op_shapes.h"
#include "parallel.h"
#include "small_gemm.h"

namespace engine::cpu_ops {
namespace {

template <bool kFlattens>
class ReshapeOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    ENGINE_RETURN_IF_ERROR(kFlattens ? kit::InferFlatten(inference)
                                     : kit::InferToChannelsLast(inference));
    if (kFlattens) return {};
    channels_ = inputs[0].shape[1];
    positions_ = inputs[0].shape.Count(2);
    if (channels_ > 1) {
      signature->workspace_bytes =
          threads() * channels_ * positions_ * static_cast<int64_t>(sizeof(float));
    }
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    if (channels_ == 1) return {};
    const float* x = call.inputs[0].f32();
    float* y = call.outputs[0].f32();
    const int64_t size = channels_ * positions_;
    ForRows(call.inputs[0].shape[0], size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Transpose({x + i * size, positions_}, channels_, positions_, y + i * size, channels_);
      }
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& dx = call.input_grads[0];
    const bool sum = Accumulates(call, 0);
    if (channels_ == 1) {
      PassGradient(call.output_grads[0], dx, sum);
      return {};
    }
    const float* dy = call.output_grads[0].f32();
    const int64_t size = channels_ * positions_;
    const int32_t parts = PartCount(dx.count(), kElementGrain);
    // What is added to goes by way of planes of the thread's own: a transposition writes.
    ForEachPart(parts, dx.shape[0], 1, [&](int32_t part, int64_t begin, int64_t end) {
      float* planes = static_cast<float*>(call.workspace) + part * size;
      for (int64_t i = begin; i < end; ++i) {
        float* target = dx.f32() + i * size;
        Transpose({dy + i * size, channels_}, positions_, channels_, sum ? planes : target,
                  positions_);
        for (int64_t j = 0; sum && j < size; ++j) target[j] += planes[j];
      }
    });
    return {};
  }

 private:
  int64_t channels_ = 1, positions_ = 0;
};

}  // namespace

const OpFactory kMakeFlatten = kit::NewOp<ReshapeOp<true>>;
const OpFactory kMakeToChannelsLast = kit::NewOp<ReshapeOp<false>>;

}  // namespace engine::cpu_ops
