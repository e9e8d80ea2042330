// global_avg_pool: the mean of each channel over all positions, (B, ..., C) to (B, C).
#include <new>
#include <span>

#include "kit/image_op_shapes.h"
#include "ops.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

CPU_OPS_KERNEL void MeanRows(const float* x, float* y, int64_t positions, int64_t channels,
                             int64_t begin, int64_t end) {
  const float scale = 1.0f / static_cast<float>(positions);
  for (int64_t sample = begin; sample < end; ++sample) {
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t lanes = LanesAt(c, channels);
      const float* column = x + sample * positions * channels + c;
      Float16 sum = {};
      for (int64_t i = 0; i < positions; ++i) sum += Load(column + i * channels, lanes);
      Store(y + sample * channels + c, sum * scale, lanes);
    }
  }
}

CPU_OPS_KERNEL void SpreadRows(const float* dy, float* dx, bool sum, int64_t positions,
                               int64_t channels, int64_t begin, int64_t end) {
  const float scale = 1.0f / static_cast<float>(positions);
  for (int64_t sample = begin; sample < end; ++sample) {
    for (int64_t c = 0; c < channels; c += kLanes) {
      const int64_t lanes = LanesAt(c, channels);
      const Float16 gradient = Load(dy + sample * channels + c, lanes) * scale;
      float* column = dx + sample * positions * channels + c;
      for (int64_t i = 0; i < positions; ++i, column += channels) {
        Store(column, sum ? gradient + Load(column, lanes) : gradient, lanes);
      }
    }
  }
}

class GlobalAvgPoolOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferGlobalAvgPool(Inferring(inputs, signature)));
    positions_ = inputs[0].shape.Count(1, -1);
    channels_ = inputs[0].shape[-1];
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    ForSamples(call, [&](int64_t begin, int64_t end) {
      MeanRows(call.inputs[0].f32(), call.outputs[0].f32(), positions_, channels_, begin, end);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    ForSamples(call, [&](int64_t begin, int64_t end) {
      SpreadRows(call.output_grads[0].f32(), call.input_grads[0].f32(), Accumulates(call, 0),
                 positions_, channels_, begin, end);
    });
    return {};
  }

 private:
  template <typename Body>
  void ForSamples(const OpCall& call, const Body& body) const noexcept {
    ForRows(call.inputs[0].shape[0], positions_ * channels_, body);
  }

  int64_t positions_ = 0, channels_ = 0;
};

}  // namespace

Op* MakeGlobalAvgPool(const OpContext& context, const Options&) noexcept {
  return new (std::nothrow) GlobalAvgPoolOp(context);
}

}  // namespace engine::cpu_ops
