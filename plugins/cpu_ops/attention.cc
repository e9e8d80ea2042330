// Self-attention over qkv (B, T, 3C): queries, keys and values side by side, each cut into heads of
// C / heads columns (the layout of GPT-2). Saved for backward: log-sum-exp of each row of scores,
// (B, heads, T).
#include <algorithm>
#include <cmath>

#include "attention_kernel.h"
#include "cpu_op.h"
#include "parallel.h"

namespace engine::cpu_ops {
namespace {

// Between rows of a gradient or of y and the dense copy of a head, rounding or widening.
template <typename From, typename To>
CPU_OPS_KERNEL void CopyRows(const From* from, int64_t from_stride, To* to, int64_t to_stride,
                             int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; ++row, from += from_stride, to += to_stride) {
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) to[i] = from[i];
  }
}

class AttentionOp final : public CpuOp {
 public:
  AttentionOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context), heads_(attributes.Int("heads")), causal_(attributes.Bool("causal")) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferAttention(Inferring(inputs, signature), heads_));
    const Shape& y = signature->outputs[0].shape;
    // The kernel reads bfloat16 in pairs.
    pairs_ = activation() == DType::kBFloat16 && y[2] / heads_ % 2 == 0;
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    signature->saved_bytes = y[0] * heads_ * y[1] * kFloat;
    signature->workspace_bytes = threads() * Scratch(y[1], y[2] / heads_) * kFloat;
    return {};
  }
  bool TakesBFloat16() const noexcept override { return pairs_; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& y = call.outputs[0];
    ForEachHead(call, [&](int64_t sample, int64_t index, float* scratch) {
      const AttentionHead head = Head(call.inputs[0], sample, index);
      const Columns of = {y, sample, index * head.size, head.size};
      const RowTarget target = Open(of, false, &scratch);
      AttentionForward(head, target, LogSums(call, sample, index), scratch);
      Close(of, target);
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const bool sum = Accumulates(call, 0);
    ForEachHead(call, [&](int64_t sample, int64_t index, float* scratch) {
      const AttentionHead head = Head(call.inputs[0], sample, index);
      const RowMatrix dy = Rows({call.output_grads[0], sample, index * head.size, head.size});
      RowTarget targets[3];
      const auto of = [&](int64_t part) -> Columns {
        return {call.input_grads[0], sample, (part * heads_ + index) * head.size, head.size};
      };
      for (int64_t part = 0; part < 3; ++part) targets[part] = Open(of(part), sum, &scratch);
      const AttentionGradients gradients = {.dq = targets[0],
                                            .dk = targets[1],
                                            .dv = targets[2],
                                            .sum_q = sum,
                                            .sum_k = sum,
                                            .sum_v = sum};
      AttentionBackward(head, dy, LogSums(call, sample, index), gradients, scratch);
      for (int64_t part = 0; part < 3; ++part) Close(of(part), targets[part]);
    });
    return {};
  }

  // Those of one head of one sample, in a tensor (B, T, columns).
  struct Columns {
    const TensorView& tensor;
    int64_t sample, begin, count;

    int64_t rows() const noexcept { return tensor.shape[1]; }
    int64_t stride() const noexcept { return tensor.shape[2]; }
    int64_t offset() const noexcept { return sample * rows() * stride() + begin; }
  };

  // To be read: floats, or pairs of bfloat16.
  RowMatrix Rows(const Columns& of) const noexcept {
    const int64_t share = pairs_ ? 2 : 1;
    return {static_cast<const float*>(of.tensor.data) + of.offset() / share, of.stride() / share};
  }
  // To be written, as floats: where they are, or, of bfloat16, in scratch, with their values when `read`.
  static RowTarget Open(const Columns& of, bool read, float** scratch) noexcept {
    if (of.tensor.dtype == DType::kFloat32) return {of.tensor.f32() + of.offset(), of.stride()};
    float* const copy = *scratch;
    *scratch += of.rows() * of.count;
    const BFloat16* const from = As<BFloat16>(of.tensor) + of.offset();
    if (read) CopyRows(from, of.stride(), copy, of.count, of.rows(), of.count);
    return {copy, of.count};
  }
  // Rounds what Open has put into scratch.
  static void Close(const Columns& of, RowTarget from) noexcept {
    if (of.tensor.dtype == DType::kFloat32) return;
    BFloat16* const to = As<BFloat16>(of.tensor) + of.offset();
    CopyRows(from.data, from.row_stride, to, of.stride(), of.rows(), of.count);
  }

  // Of one thread: for copies of three gradients, and of the kernel.
  int64_t Scratch(int64_t length, int64_t size) const noexcept {
    const int64_t copies = pairs_ ? 3 * length * size : 0;
    return (copies + AttentionScratch(length, size, size) + kLine - 1) / kLine * kLine;
  }

  AttentionHead Head(const TensorView& qkv, int64_t sample, int64_t index) const noexcept {
    const int64_t size = qkv.shape[2] / 3 / heads_;
    const auto rows = [&](int64_t part) {
      return Rows({qkv, sample, (part * heads_ + index) * size, size});
    };
    return {.q = rows(0),
            .k = rows(1),
            .v = rows(2),
            .queries = qkv.shape[1],
            .keys = qkv.shape[1],
            .size = size,
            .value_size = size,
            .scale = 1.0f / std::sqrt(static_cast<float>(size)),
            .causal = causal_,
            .pairs = pairs_};
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
    const int64_t scratch = Scratch(shape[1], size);
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
  bool pairs_ = false;
};

}  // namespace

const OpFactory kMakeAttention = kit::NewOp<AttentionOp>;

}  // namespace engine::cpu_ops
