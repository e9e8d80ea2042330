// scaled_dot_product_attention: y = softmax(scale q k^T + mask) v for heads that lie apart, q
// (B, H, T, D), k (B, H, S, D), v (B, H, S, E). In two ways:
//
// - As the op "attention", with its kernels, where that has one that keeps no scores (bfloat16, heads
//   of 64 or 128), and there is no mask, nor another scale, number of keys or size of values: q, k
//   and v are laid side by side for it.
// - By batched products and a softmax. Saved for backward: the probabilities (B, H, T, S).
#include <cmath>
#include <cstddef>
#include <memory>

#include "batched_products.h"
#include "cuda_op.h"
#include "kernels/attention.h"
#include "kernels/softmax.h"
#include "kit/array_op_shapes.h"
#include "strided_tensors.h"

namespace engine::cuda_ops {
namespace {

constexpr int32_t kQuery = 0, kKey = 1, kValue = 2, kMask = 3;

// Scores, of which T is the number of queries and S that of keys, and other matrices by name of
// their extents.
struct Extents {
  int64_t batch, heads, queries, keys, head_size, value_size;

  explicit Extents(const Shape& q, const Shape& k, const Shape& v) noexcept
      : batch(q[0]), heads(q[1]), queries(q[2]), keys(k[2]), head_size(q[3]), value_size(v[3]) {}
  explicit Extents(const OpCall& call) noexcept
      : Extents(call.inputs[kQuery].shape, call.inputs[kKey].shape, call.inputs[kValue].shape) {}
  int64_t scores() const noexcept { return batch * heads * queries * keys; }
};

// Matrices of rows x columns, one for each head of each sample.
MatrixBatch Matrices(const void* data, int64_t rows, int64_t columns, bool transposed) noexcept {
  return {const_cast<void*>(data), {rows * columns}, transposed};
}

class SdpaOp final : public kit::ShapedOp<CudaOp, kit::SdpaRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const Shape& q = inputs[kQuery].shape;
    if (IsFused(inputs)) return InferFused(q, signature);
    const Extents of(q, inputs[kKey].shape, inputs[kValue].shape);
    const int64_t scores = of.scores();
    signature->saved_bytes = ActivationBytes(scores);
    signature->workspace_bytes = FloatBytes(scores) + ActivationBytes(scores);
    signature->backward_reads_inputs = 0b111;
    return {};
  }

  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (call.outputs[0].count() == 0) return {};
    if (fused_ != nullptr) return ForwardFused(call, stream);
    return WithElement(activation(), [&]<typename T>(T) { return ForwardOf<T>(call, stream); });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (call.outputs[0].count() == 0) return {};  // so have the gradients no elements
    if (fused_ != nullptr) return BackwardFused(call, stream);
    return WithElement(activation(), [&]<typename T>(T) { return BackwardOf<T>(call, stream); });
  }

  int64_t ActivationBytes(int64_t count) const noexcept {
    return AlignedBytes(count * static_cast<int64_t>(SizeOf(activation())));
  }
  static int64_t FloatBytes(int64_t count) noexcept {
    return AlignedBytes(count * static_cast<int64_t>(sizeof(float)));
  }

  // ---- By products. Scores are floats, in the workspace; behind them are activations.

  Status Product(const Extents& of, int64_t m, int64_t n, int64_t k, const MatrixBatch& a,
                 const MatrixBatch& b, const TensorView& d, float scale, bool sum,
                 cudaStream_t stream) const noexcept {
    const BatchedProduct product = {.m = m,
                                    .n = n,
                                    .k = k,
                                    .axes = 1,
                                    .extents = {of.batch * of.heads},
                                    .a = a,
                                    .b = b,
                                    .d = Matrices(d.data, m, n, false),
                                    .factors = activation(),
                                    .result = d.dtype,
                                    .scale = scale,
                                    .sum = sum};
    return Multiply(blas(), product, stream).WithContext("%s", name());
  }
  // Products of x (rows, k) and w (columns, k) as scores, into the workspace.
  Status Scores(const OpCall& call, const Extents& of, const TensorView& x, const TensorView& w,
                float scale, cudaStream_t stream) const noexcept {
    const int64_t k = x.shape[-1];
    return Product(of, of.queries, of.keys, k, Matrices(x.data, of.queries, k, false),
                   Matrices(w.data, of.keys, k, true), {call.workspace, {}, DType::kFloat32}, scale,
                   false, stream);
  }
  void* BehindScores(const OpCall& call, const Extents& of) const noexcept {
    return static_cast<std::byte*>(call.workspace) + FloatBytes(of.scores());
  }

  template <typename T>
  Status ForwardOf(const OpCall& call, cudaStream_t stream) const noexcept {
    const Extents of(call);
    const float scale = given_.Scale(call.inputs[kQuery].shape);
    ENGINE_RETURN_IF_ERROR(Scores(call, of, call.inputs[kQuery], call.inputs[kKey], scale, stream));
    ScoreMask mask = {.heads = of.heads, .queries = of.queries, .causal = given_.causal};
    if (call.inputs.size() > kMask) mask.mask = Repeated(call.inputs[kMask], 4);
    T* const p = static_cast<T*>(call.saved != nullptr ? call.saved : BehindScores(call, of));
    ENGINE_RETURN_IF_ERROR(
        Launched(LaunchSoftmax(SoftmaxShapeOf(of), mask, static_cast<const float*>(call.workspace),
                               p, stream),
                 "softmax"));
    return Product(of, of.queries, of.value_size, of.keys, Matrices(p, of.queries, of.keys, false),
                   Matrices(call.inputs[kValue].data, of.keys, of.value_size, false),
                   call.outputs[0], 1, false, stream);
  }

  template <typename T>
  Status BackwardOf(const OpCall& call, cudaStream_t stream) const noexcept {
    const Extents of(call);
    const TensorView &q = call.inputs[kQuery], &k = call.inputs[kKey], &v = call.inputs[kValue];
    const TensorView& dy = call.output_grads[0];
    const float scale = given_.Scale(q.shape);
    if (WantsGradient(call, kValue)) {
      ENGINE_RETURN_IF_ERROR(Product(
          of, of.keys, of.value_size, of.queries, Matrices(call.saved, of.queries, of.keys, true),
          Matrices(dy.data, of.queries, of.value_size, false), call.input_grads[kValue], 1,
          Accumulates(call, kValue), stream));
    }
    if (!WantsGradient(call, kQuery) && !WantsGradient(call, kKey)) return {};
    ENGINE_RETURN_IF_ERROR(Scores(call, of, dy, v, 1, stream));
    T* const ds = static_cast<T*>(BehindScores(call, of));
    ENGINE_RETURN_IF_ERROR(Launched(
        LaunchSoftmaxGradient(SoftmaxShapeOf(of), static_cast<const T*>(call.saved),
                              static_cast<const float*>(call.workspace), ds, false, stream),
        "gradient of the softmax"));
    if (WantsGradient(call, kQuery)) {
      ENGINE_RETURN_IF_ERROR(
          Product(of, of.queries, of.head_size, of.keys, Matrices(ds, of.queries, of.keys, false),
                  Matrices(k.data, of.keys, of.head_size, false), call.input_grads[kQuery], scale,
                  Accumulates(call, kQuery), stream));
    }
    if (!WantsGradient(call, kKey)) return {};
    return Product(of, of.keys, of.head_size, of.queries, Matrices(ds, of.queries, of.keys, true),
                   Matrices(q.data, of.queries, of.head_size, false), call.input_grads[kKey], scale,
                   Accumulates(call, kKey), stream);
  }

  static SoftmaxShape SoftmaxShapeOf(const Extents& of) noexcept {
    return {of.batch * of.heads * of.queries, of.keys};
  }

  // ---- As "attention". Saved: what that saves, qkv (B, T, 3, H, D), y (B, T, H, D). Workspace: its
  // own, the gradient of qkv, that of y.

  bool IsFused(Array<const TensorSpec> inputs) const noexcept {
    const Shape &q = inputs[kQuery].shape, &v = inputs[kValue].shape;
    const bool plain_scale = given_.scale <= 0 || given_.scale == 1 / std::sqrt(float(q[3]));
    return activation() == DType::kBFloat16 && inputs.size() == 3 && plain_scale && v == q &&
           inputs[kKey].shape == q && IsFlashHeadSize(q[3]);
  }

  Status InferFused(const Shape& q, OpSignature* signature) noexcept {
    fused_.reset(NewAttention(context(), q[1], given_.causal));
    if (fused_ == nullptr) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: memory is out", name());
    }
    const TensorSpec packed = {Packed(q, 3), activation(), 1};
    OpSignature own;
    ENGINE_RETURN_IF_ERROR(fused_->Infer({&packed, 1}, &own));
    saved_ = AlignedBytes(own.saved_bytes);
    workspace_ = AlignedBytes(own.workspace_bytes);
    const int64_t bytes = ActivationBytes(q.Count());
    signature->saved_bytes = saved_ + 4 * bytes;
    signature->workspace_bytes = workspace_ + 4 * bytes;
    signature->backward_reads_inputs = 0;
    return {};
  }

  // (B, T, parts * H * D)
  static Shape Packed(const Shape& q, int64_t parts) noexcept {
    return {q[0], q[2], parts * q[1] * q[3]};
  }

  // Between x (B, H, T, D) and part `part` of `parts` of packed ones.
  Status Move(const TensorView& x, const TensorView& packed, int64_t part, bool to_packed, bool sum,
              cudaStream_t stream) const noexcept {
    const int64_t heads = x.shape[1], length = x.shape[2], size = x.shape[3];
    const int64_t row = packed.shape[2];
    StridedMap map = MapOver(x.shape);
    StridedTensor inside = {packed.data, IsBf16(packed), {length * row, size, row, 1}};
    cuda_ops::Move(part * heads * size, &inside);
    map.in[0] = to_packed ? Dense(x) : inside;
    map.out = to_packed ? inside : Dense(x);
    map.sum = sum;
    return Launched(LaunchStrided(map, nullptr, stream), "layout");
  }

  // The call of "attention" within this one.
  struct FusedCall {
    TensorView qkv, y, dqkv, dy;
    OpCall call;
  };
  // In evaluation nothing is saved: what would be is in the workspace.
  void SetFused(const OpCall& call, FusedCall* fused) const noexcept {
    const Shape& q = call.inputs[kQuery].shape;
    const int64_t bytes = ActivationBytes(q.Count());
    auto* const workspace = static_cast<std::byte*>(call.workspace);
    auto* const saved = static_cast<std::byte*>(call.saved);
    std::byte* const kept = saved != nullptr ? saved + saved_ : workspace + workspace_;
    std::byte* const gradients = workspace + workspace_;
    fused->qkv = {kept, Packed(q, 3), activation()};
    fused->y = {kept + 3 * bytes, Packed(q, 1), activation()};
    fused->dqkv = {gradients, Packed(q, 3), activation()};
    fused->dy = {gradients + 3 * bytes, Packed(q, 1), activation()};
    fused->call = call;
    fused->call.inputs = {&fused->qkv, 1};
    fused->call.outputs = {&fused->y, 1};
    fused->call.accumulate = 0;
    fused->call.gradient_in_place = 0;
  }

  Status ForwardFused(const OpCall& call, cudaStream_t stream) const noexcept {
    FusedCall fused;
    SetFused(call, &fused);
    for (const int32_t i : {kQuery, kKey, kValue}) {
      ENGINE_RETURN_IF_ERROR(
          Move(call.inputs[static_cast<size_t>(i)], fused.qkv, i, true, false, stream));
    }
    ENGINE_RETURN_IF_ERROR(fused_->Forward(fused.call));
    return Move(call.outputs[0], fused.y, 0, false, false, stream);
  }

  Status BackwardFused(const OpCall& call, cudaStream_t stream) const noexcept {
    FusedCall fused;
    SetFused(call, &fused);
    ENGINE_RETURN_IF_ERROR(Move(call.output_grads[0], fused.dy, 0, true, false, stream));
    fused.call.output_grads = {&fused.dy, 1};
    fused.call.input_grads = {&fused.dqkv, 1};
    ENGINE_RETURN_IF_ERROR(fused_->Backward(fused.call));
    for (const int32_t i : {kQuery, kKey, kValue}) {
      const auto input = static_cast<size_t>(i);
      if (!WantsGradient(call, input)) continue;
      ENGINE_RETURN_IF_ERROR(
          Move(call.input_grads[input], fused.dqkv, i, false, Accumulates(call, i), stream));
    }
    return {};
  }

  std::unique_ptr<Op> fused_;
  int64_t saved_ = 0, workspace_ = 0;  // of fused_
};

}  // namespace

const OpFactory kMakeSdpa = kit::NewOp<SdpaOp>;

}  // namespace engine::cuda_ops
