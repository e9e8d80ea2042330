// Self-attention over qkv (B, T, 3C): queries, keys and values side by side, each cut into heads of
// C / heads columns (the layout of GPT-2). Saved for backward: log-sum-exp of each row of scores,
// (B, heads, T).
#include <algorithm>
#include <cmath>
#include <span>

#include "attention_kernel.h"
#include "cpu_op.h"
#include "parallel.h"

namespace engine::cpu_ops {
namespace {

class AttentionOp final : public CpuOp {
 public:
  AttentionOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context), heads_(attributes.Int("heads")), causal_(attributes.Bool("causal")) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferAttention(Inferring(inputs, signature), heads_));
    const Shape& y = signature->outputs[0].shape;
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    signature->saved_bytes = y[0] * heads_ * y[1] * kFloat;
    signature->workspace_bytes =
        threads() * AttentionScratch(y[1], y[2] / heads_, y[2] / heads_) * kFloat;
    return {};
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& y = call.outputs[0];
    ForEachHead(call, [&](int64_t sample, int64_t index, float* scratch) {
      const int64_t width = y.shape[2];
      const RowTarget target = {y.f32() + Offset(y, sample) + index * (width / heads_), width};
      AttentionForward(Head(call.inputs[0], sample, index), target, LogSums(call, sample, index),
                       scratch);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& dy = call.output_grads[0];
    const bool sum = Accumulates(call, 0);
    ForEachHead(call, [&](int64_t sample, int64_t index, float* scratch) {
      const int64_t width = dy.shape[2], size = width / heads_;
      float* dqkv = call.input_grads[0].f32() + Offset(call.input_grads[0], sample) + index * size;
      const AttentionGradients gradients = {.dq = {dqkv, 3 * width},
                                            .dk = {dqkv + width, 3 * width},
                                            .dv = {dqkv + 2 * width, 3 * width},
                                            .sum_q = sum,
                                            .sum_k = sum,
                                            .sum_v = sum};
      AttentionBackward(Head(call.inputs[0], sample, index),
                        {dy.f32() + Offset(dy, sample) + index * size, width},
                        LogSums(call, sample, index), gradients, scratch);
    });
    return {};
  }

 private:
  static int64_t Offset(const TensorView& tensor, int64_t sample) noexcept {
    return sample * tensor.shape.Count(1);
  }

  AttentionHead Head(const TensorView& qkv, int64_t sample, int64_t index) const noexcept {
    const int64_t width = qkv.shape[2] / 3, size = width / heads_;
    const float* q = qkv.f32() + Offset(qkv, sample) + index * size;
    return {.q = {q, 3 * width},
            .k = {q + width, 3 * width},
            .v = {q + 2 * width, 3 * width},
            .queries = qkv.shape[1],
            .keys = qkv.shape[1],
            .size = size,
            .value_size = size,
            .scale = 1.0f / std::sqrt(static_cast<float>(size)),
            .causal = causal_};
  }

  float* LogSums(const OpCall& call, int64_t sample, int64_t index) const noexcept {
    if (call.saved == nullptr) return nullptr;
    const int64_t length = call.inputs[0].shape[1];
    return static_cast<float*>(call.saved) + (sample * heads_ + index) * length;
  }

  // body(sample, head index, scratch of the thread) for every head of every sample.
  template <typename Body>
  void ForEachHead(const OpCall& call, const Body& body) const noexcept {
    const Shape& shape = call.inputs[0].shape;
    const int64_t size = shape[2] / 3 / heads_;
    const int64_t scratch = AttentionScratch(shape[1], size, size);
    const int64_t count = shape[0] * heads_;
    const int64_t work = shape[1] * shape[1] * size;
    // A head is one thread's: its sums have one order, and no two threads write one row of dqkv.
    const int32_t parts = PartCount(count, kAttentionGrain / std::max<int64_t>(work, 1));
    ForEachPart(parts, count, 1, [&](int32_t part, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        body(i / heads_, i % heads_, static_cast<float*>(call.workspace) + part * scratch);
      }
    });
  }

  const int64_t heads_;
  const bool causal_;
};

}  // namespace

const OpFactory kMakeAttention = kit::NewOp<AttentionOp>;

}  // namespace engine::cpu_ops
