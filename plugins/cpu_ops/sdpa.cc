// scaled_dot_product_attention over heads that are given: q (B, H, T, D), k (B, H, S, D),
// v (B, H, S, E) and, maybe, a mask. Saved for backward: log-sum-exp of each row of scores,
// (B, H, T).
#include <algorithm>

#include "attention_kernel.h"
#include "cpu_op.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "strided.h"

namespace engine::cpu_ops {
namespace {

class SdpaOp final : public kit::ShapedOp<CpuOp, kit::SdpaRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const Shape &q = inputs[kQ].shape, &v = inputs[kV].shape;
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    signature->saved_bytes = q.Count(0, 3) * kFloat;
    signature->workspace_bytes = threads() * AttentionScratch(v[2], q[3], v[3]) * kFloat;
    return {};
  }

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& y = call.outputs[0];
    ForEachHead(call, [&](int64_t i, const AttentionHead& head, float* log_sums, float* scratch) {
      AttentionForward(head, {Matrix(y, i), y.shape[3]}, log_sums, scratch);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, kQ) && !WantsGradient(call, kK) && !WantsGradient(call, kV)) return {};
    const TensorView& dy = call.output_grads[0];
    ForEachHead(call, [&](int64_t i, const AttentionHead& head, float* log_sums, float* scratch) {
      const auto target = [&](size_t input) -> RowTarget {
        const TensorView& gradient = call.input_grads[input];
        return {gradient.data == nullptr ? nullptr : Matrix(gradient, i), gradient.shape[3]};
      };
      const AttentionGradients gradients = {.dq = target(kQ),
                                            .dk = target(kK),
                                            .dv = target(kV),
                                            .sum_q = Accumulates(call, kQ),
                                            .sum_k = Accumulates(call, kK),
                                            .sum_v = Accumulates(call, kV)};
      AttentionBackward(head, {Matrix(dy, i), dy.shape[3]}, log_sums, gradients, scratch);
    });
    return {};
  }

  static constexpr int32_t kQ = 0, kK = 1, kV = 2, kMask = 3;

  // Head i of a tensor, counted through all samples.
  static float* Matrix(const TensorView& tensor, int64_t i) noexcept {
    return tensor.f32() + i * tensor.shape.Count(2);
  }

  AttentionHead Head(const OpCall& call, int64_t i) const noexcept {
    const TensorView &q = call.inputs[kQ], &k = call.inputs[kK], &v = call.inputs[kV];
    AttentionHead head = {.q = {Matrix(q, i), q.shape[3]},
                          .k = {Matrix(k, i), k.shape[3]},
                          .v = {Matrix(v, i), v.shape[3]},
                          .queries = q.shape[2],
                          .keys = k.shape[2],
                          .size = q.shape[3],
                          .value_size = v.shape[3],
                          .scale = given_.Scale(q.shape),
                          .causal = given_.causal};
    if (call.inputs.size() > kMask) {
      const TensorView& mask = call.inputs[kMask];
      const Shape scores{q.shape[0], q.shape[1], q.shape[2], k.shape[2]};
      const Strides strides = BroadcastStrides(mask.shape, scores);
      head.mask = mask.f32() + i / q.shape[1] * strides[0] + i % q.shape[1] * strides[1];
      head.mask_row = strides[2];
      head.mask_column = strides[3];
    }
    return head;
  }

  // body(i, head, its log_sums or null, scratch of the thread) for every head of every sample. One
  // is one thread's, so that its sums have one order.
  template <typename Body>
  void ForEachHead(const OpCall& call, const Body& body) const noexcept {
    const Shape &q = call.inputs[kQ].shape, &v = call.inputs[kV].shape;
    const int64_t scratch = AttentionScratch(v[2], q[3], v[3]);
    const int64_t work = q[2] * v[2] * (q[3] + v[3]) / 2, heads = q[0] * q[1];
    const int32_t parts = PartCount(heads, kAttentionGrain / std::max<int64_t>(work, 1));
    ForEachPart(parts, heads, 1, [&](int32_t part, int64_t begin, int64_t end) {
      auto* const own = static_cast<float*>(call.workspace) + part * scratch;
      auto* const saved = static_cast<float*>(call.saved);
      for (int64_t i = begin; i < end; ++i) {
        body(i, Head(call, i), saved == nullptr ? nullptr : saved + i * q[2], own);
      }
    });
  }
};

}  // namespace

const OpFactory kMakeSdpa = kit::NewOp<SdpaOp>;

}  // namespace engine::cpu_ops
