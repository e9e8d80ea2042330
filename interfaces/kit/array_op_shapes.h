// As op_shapes.h, for ops on arrays: functions of several inputs, products of activations,
// reductions over axes, and ops that only move elements.
//
// Dimension 0 of a batched tensor is that of samples: no op reduces it, moves it, or has an input
// without samples there but one that all samples share. Axes count from 0, or from -1, the last
// one, backwards; what Infer finds out about them for a kernel it gives out counted from 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/op.h"
#include "engine/options.h"
#include "engine/status.h"
#include "kit/op.h"
#include "kit/op_shapes.h"

namespace engine::kit {

// A list of an attribute, with an entry for each of some dimensions. Attributes are borrowed, this
// is a copy. A list that is longer than any shape fits none.
struct DimList {
  int64_t values[kMaxDims] = {};
  size_t count = 0;  // as given

  explicit DimList(std::span<const int64_t> given) noexcept : count(given.size()) {
    std::copy_n(given.begin(), std::min(count, size_t{kMaxDims}), values);
  }
  int64_t operator[](int32_t i) const noexcept { return values[i]; }
  // Entries for the dimensions [first, ndim).
  bool Fits(int32_t first, int32_t ndim) const noexcept {
    return count == static_cast<size_t>(ndim - first);
  }
};

// The first axis of x that ops may change.
inline int32_t FirstAxis(const TensorSpec& x) noexcept {
  return x.batched != 0 ? 1 : 0;
}

inline Status AxisError(const Inference& op, int64_t axis) noexcept {
  const TensorSpec& x = op.inputs[0];
  return Status::Error(StatusCode::kConfig, "%s: %s%s has no axis %lld that this op can take%s",
                       op.name, SpecText(x).text, x.batched != 0 ? ", with samples in axis 0," : "",
                       static_cast<long long>(axis), x.batched != 0 ? "; name one behind it" : "");
}

// `axis`, which an attribute named, of input 0.
inline Status ResolveAxis(const Inference& op, int64_t given, int32_t* axis) noexcept {
  const TensorSpec& x = op.inputs[0];
  const int64_t from_0 = given < 0 ? given + x.shape.ndim : given;
  *axis = static_cast<int32_t>(from_0);
  return from_0 >= FirstAxis(x) && from_0 < x.shape.ndim ? Status() : AxisError(op, given);
}

inline Status CheckActivation(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  return op.IsActivation(0) ? Status() : op.ActivationError(0, "");
}

// ---- Functions of several inputs

// NumPy's rules: extents are compared from the last one backwards, and an extent of 1, or none, fits
// any other. Samples are dimension 0 of the result: batched tensors have all dimensions, and one that
// is not has an extent of 1 there, or none. Whether x fits; then y has the shape of both.
inline bool Broadcast(const TensorSpec& x, TensorSpec* y) noexcept {
  const int32_t ndim = std::max(x.shape.ndim, y->shape.ndim);
  const bool batched = x.batched != 0 || y->batched != 0;
  for (const TensorSpec& one : {x, *y}) {
    if (!batched || (one.batched == 0 && one.shape.ndim < ndim)) continue;
    if (one.shape.ndim != ndim || (one.batched == 0 && one.shape[0] != 1)) return false;
  }
  if (x.batched != 0 && y->batched != 0 && x.shape[0] != y->shape[0]) return false;
  Shape both;
  both.ndim = ndim;
  for (int32_t i = 1; i <= ndim; ++i) {
    const int64_t a = i <= x.shape.ndim ? x.shape[-i] : 1;
    const int64_t b = i <= y->shape.ndim ? y->shape[-i] : 1;
    if (a != b && a != 1 && b != 1) return false;
    both[-i] = a == 1 ? b : a;
  }
  *y = {both, y->dtype, batched ? 1u : 0u};
  return true;
}

// Output 0 gets what inputs [0, count) broadcast to.
inline Status AddBroadcastOutput(const Inference& op, size_t count) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(count));
  TensorSpec y = op.inputs[0];
  for (size_t i = 0; i < count; ++i) {
    if (!op.IsActivation(i)) return op.ActivationError(i, "");
    if (Broadcast(op.inputs[i], &y)) continue;
    char need[240];
    snprintf(need, sizeof need, "a shape that broadcasts with %s; one without samples has 1 there",
             SpecText(y).text);
    return op.InputError(i, need);
  }
  AddOutput(op.signature, y.shape, y.batched, op.activation);
  return {};
}

// Whether input i has the shape of output 0, not one that is repeated.
inline bool IsWhole(const Inference& op, size_t i) noexcept {
  const TensorSpec &x = op.inputs[i], &y = op.signature->outputs[0];
  return x.shape == y.shape && x.batched == y.batched;
}

// y = f(a, b). The masks are what Backward reads.
inline Status InferBinary(const Inference& op, uint32_t reads_inputs,
                          uint32_t reads_outputs = 0) noexcept {
  ENGINE_RETURN_IF_ERROR(AddBroadcastOutput(op, 2));
  if ((reads_inputs & 1) == 0 && IsWhole(op, 0)) op.signature->in_place_of = 0;
  return op.Gradients(0b11, reads_inputs, reads_outputs);
}

// y = a + b: of equal shapes InferSum.
inline Status InferAdd(const Inference& op) noexcept {
  if (op.inputs.size() == 2 && op.CheckSameAsFirst().ok()) return InferSum(op, false);
  ENGINE_RETURN_IF_ERROR(InferBinary(op, 0));
  for (size_t i = 0; i < 2; ++i) {
    if (IsWhole(op, i)) op.signature->passes_gradient |= 1u << i;
  }
  return {};
}

// y = a where the condition is not 0, else b.
inline Status InferWhere(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(AddBroadcastOutput(op, 3));
  return op.Gradients(0b110, 0b001);
}

// y = factor x + offset
inline Status InferScale(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckActivation(op));
  op.AddOutput(op.inputs[0].shape);
  op.signature->in_place_of = 0;
  return op.Gradients(1, 0);
}

// y = x > 0 ? x : weight x; x (..., C), weight (C), or (1) where one is given. It begins as relu.
inline Status InferPrelu(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckNormInputs(op, 1));
  op.AddOutput(op.inputs[0].shape);
  const bool one = op.inputs.size() > 1 && op.inputs[1].shape == Shape{1};
  op.AddParameter("weight", Shape{one ? 1 : op.inputs[0].shape[-1]}, Initializer::kZeros);
  return op.Gradients(0b11, 0b11);
}

// ---- Norms and products

// y sums to 1 along the axis, or its exponentials do.
struct SoftmaxRule {
  int64_t given;
  int32_t axis = 0;

  explicit SoftmaxRule(const Options& attributes) noexcept : given(attributes.Int("axis")) {}

  Status Infer(const Inference& op) noexcept {
    ENGINE_RETURN_IF_ERROR(CheckActivation(op));
    ENGINE_RETURN_IF_ERROR(ResolveAxis(op, given, &axis));
    op.AddOutput(op.inputs[0].shape);
    op.signature->in_place_of = 0;
    return op.Gradients(1, 0, 1);
  }
};

// y = x / sqrt(mean(x^2) + epsilon) weight, over the last dimension.
inline Status InferRmsNorm(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckNormInputs(op, 1));
  op.AddOutput(op.inputs[0].shape);
  op.AddParameter("weight", Shape{op.inputs[0].shape[-1]}, Initializer::kOnes);
  return op.Gradients(0b11, 0b11);
}

// `x` without its last two dimensions.
inline TensorSpec LeadingOf(TensorSpec x) noexcept {
  for (int i = 0; i < 2; ++i) x.shape.dims[--x.shape.ndim] = 0;
  if (x.shape.ndim == 0) x.batched = 0;
  return x;
}

// y (..., M, N) = scale a (..., M, K) b (..., K, N), where dimensions before these broadcast. The
// rows of a (B, K) are samples; then b is (K, N).
struct MatmulRule {
  bool transpose_a, transpose_b;  // whether a is (..., K, M), whether b is (..., N, K)
  float scale;

  explicit MatmulRule(const Options& attributes) noexcept
      : transpose_a(attributes.Bool("transpose_a")),
        transpose_b(attributes.Bool("transpose_b")),
        scale(static_cast<float>(attributes.Float("scale"))) {}

  int64_t M(const Shape& a) const noexcept { return a[transpose_a ? -1 : -2]; }
  int64_t K(const Shape& a) const noexcept { return a[transpose_a ? -2 : -1]; }
  int64_t N(const Shape& b) const noexcept { return b[transpose_b ? -2 : -1]; }
  int64_t RowsOfB(const Shape& b) const noexcept { return b[transpose_b ? -1 : -2]; }

  Status Infer(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(2));
    for (size_t i = 0; i < 2; ++i) {
      if (op.IsActivation(i) && op.inputs[i].shape.ndim >= 2) continue;
      return op.ActivationError(i, ", at least two dimensions");
    }
    const TensorSpec &a = op.inputs[0], &b = op.inputs[1];
    const bool rows_are_samples = a.batched != 0 && a.shape.ndim == 2;
    TensorSpec y = LeadingOf(a);
    const bool fits =
        K(a.shape) >= 1 && K(a.shape) == RowsOfB(b.shape) && Broadcast(LeadingOf(b), &y);
    const bool samples_fit =
        (b.batched == 0 || b.shape.ndim > 2) &&
        (!rows_are_samples || (!transpose_a && b.batched == 0 && b.shape.ndim == 2));
    if (!fits || !samples_fit) {
      return Status::Error(
          StatusCode::kConfig,
          "%s: %s%s and %s%s have no product; the columns of the first must be the "
          "rows of the second, dimensions before these must broadcast, and samples "
          "be rows of the first or dimension 0 of three or more",
          op.name, SpecText(a).text, transpose_a ? " transposed" : "", SpecText(b).text,
          transpose_b ? " transposed" : "");
    }
    y.shape.dims[y.shape.ndim++] = M(a.shape);
    y.shape.dims[y.shape.ndim++] = N(b.shape);
    AddOutput(op.signature, y.shape, a.batched | b.batched, op.activation);
    return op.Gradients(0b11, 0b11);
  }
};

// y (B, H, T, E) = softmax(scale q k^T + mask) v with q (B, H, T, D), k (B, H, S, D),
// v (B, H, S, E) and a mask that broadcasts to (B, H, T, S). The mask gets no gradient.
struct SdpaRule {
  bool causal;  // query i sees keys 0 to i alone, also where S is not T
  float scale;

  explicit SdpaRule(const Options& attributes) noexcept
      : causal(attributes.Bool("causal")), scale(static_cast<float>(attributes.Float("scale"))) {}
  float Scale(const Shape& q) const noexcept {
    return scale > 0 ? scale : 1.0f / std::sqrt(static_cast<float>(q[-1]));
  }

  Status Infer(const Inference& op) const noexcept {
    const bool masked = op.inputs.size() > 3;
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(masked ? 4 : 3));
    const TensorSpec& q = op.inputs[0];
    if (!op.IsActivation(0) || q.shape.ndim != 4 || q.shape.Count(1) < 1) {
      return op.ActivationError(0, " (B, H, T, D): batch, heads, queries, size of a head");
    }
    for (const size_t i : {1, 2}) {
      const TensorSpec& x = op.inputs[i];
      if (op.IsActivation(i) && x.batched == q.batched && x.shape.ndim == 4 && x.shape[2] >= 1 &&
          x.shape[0] == q.shape[0] && x.shape[1] == q.shape[1] &&
          (i == 1 ? x.shape[3] == q.shape[3] : x.shape[2] == op.inputs[1].shape[2])) {
        continue;
      }
      return op.ActivationError(i, i == 1 ? " (B, H, S, D), with the B, H and D of input 0"
                                          : " (B, H, S, E), with the B, H and S of input 1");
    }
    const int64_t keys = op.inputs[1].shape[2];
    TensorSpec scores = {Shape{q.shape[0], q.shape[1], q.shape[2], keys}, q.dtype, q.batched};
    const Shape whole = scores.shape;
    if (masked && !(op.IsActivation(3) && Broadcast(op.inputs[3], &scores) &&
                    scores.shape == whole && scores.batched == q.batched)) {
      return op.ActivationError(3, " that broadcasts to the scores (B, H, T, S)");
    }
    op.AddOutput(Shape{q.shape[0], q.shape[1], q.shape[2], op.inputs[2].shape[3]});
    return op.Gradients(0b111, masked ? 0b1111 : 0b111);
  }
};

// Each pair (a, b) of columns of x (..., T, D), at positions i and j, becomes
// (a cos_i - b sin_i, b cos_j + a sin_j), with cos and sin (T, D): Su et al., arXiv:2104.09864.
struct RotaryRule {
  bool interleaved;

  explicit RotaryRule(const Options& attributes) noexcept
      : interleaved(attributes.Bool("interleaved")) {}

  Status Infer(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(3));
    const TensorSpec& x = op.inputs[0];
    if (!op.IsActivation(0) || x.shape.ndim < 2 + FirstAxis(x) || x.shape[-1] % 2 != 0) {
      return op.ActivationError(0,
                                " (..., T, D) with an even D, behind the samples if there are any");
    }
    for (const size_t i : {1, 2}) {
      const TensorSpec& table = op.inputs[i];
      if (op.IsActivation(i) && table.batched == 0 &&
          table.shape == Shape{x.shape[-2], x.shape[-1]}) {
        continue;
      }
      return op.ActivationError(i, " (T, D) without a batch, with the T and D of input 0");
    }
    op.AddOutput(x.shape);
    op.signature->in_place_of = 0;
    return op.Gradients(1, 0b110);
  }
};

// The axes of x that are reduced, bit i for axis i. `keep`: they stay, with an extent of 1.
struct ReduceRule {
  DimList given;
  bool keep;
  uint32_t axes = 0;

  explicit ReduceRule(const Options& attributes) noexcept
      : given(attributes.Ints("axes")), keep(attributes.Bool("keep")) {}

  Status Infer(const Inference& op) noexcept {
    ENGINE_RETURN_IF_ERROR(CheckActivation(op));
    const Shape& x = op.inputs[0].shape;
    axes = 0;
    if (given.count > size_t{kMaxDims}) return AxisError(op, kMaxDims);
    for (size_t i = 0; i < given.count; ++i) {
      int32_t axis = 0;
      ENGINE_RETURN_IF_ERROR(ResolveAxis(op, given.values[i], &axis));
      axes |= 1u << axis;
    }
    if (given.count == 0) axes = (1u << x.ndim) - (1u << FirstAxis(op.inputs[0]));
    Shape y;
    for (int32_t i = 0; i < x.ndim; ++i) {
      const bool reduced = (axes >> i & 1) != 0;
      if (reduced && x[i] < 1) return op.ActivationError(0, " with elements to reduce");
      if (!reduced || keep) y.dims[y.ndim++] = reduced ? 1 : x[i];
    }
    op.AddOutput(y);
    const uint32_t reads = std::string_view(op.name) == "reduce_max" ? 1 : 0;
    return op.Gradients(1, reads, reads);
  }
};

}  // namespace engine::kit
