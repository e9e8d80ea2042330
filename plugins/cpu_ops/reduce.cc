// reduce_sum, reduce_mean, reduce_max over any axes.
#include <cstdint>
#include <utility>

#include "cpu_op.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "simd.h"
#include "strided.h"

namespace engine::cpu_ops {
namespace {

enum class Kind { kSum, kMean, kMax };

CPU_OPS_KERNEL void ScaleRow(const float* x, float factor, float* y, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = factor * x[i];
}

// y[i] = 1 where x[i] is the largest number of its reduction.
CPU_OPS_KERNEL void MarkLargest(const float* x, const float* largest, int64_t stride, float* y,
                                int64_t count) {
  if (stride == 0) {
    const float one = *largest;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) y[i] = x[i] == one ? 1.0f : 0.0f;
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] == largest[i] ? 1.0f : 0.0f;
}

// Adds `share` to dx where x is the largest, if `sum`; else writes it, and zeros elsewhere.
void ShareGradient(const float* x, const float* largest, const float* share, int64_t stride,
                   float* dx, bool sum, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = x[i] == largest[i * stride] ? share[i * stride] : 0.0f;
    dx[i] = gradient + (sum ? dx[i] : 0.0f);
  }
}

// Backward of a sum is a copy with a stride of 0; that of a mean the same of dy divided by the count,
// which lies in the workspace; that of a maximum needs x and y to find where it was.
template <Kind kKind>
class ReduceOp final : public kit::ShapedOp<CpuOp, kit::ReduceRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    const int64_t shares = kKind == Kind::kSum ? 0 : signature->outputs[0].shape.Count();
    shares_ = (shares + kLine - 1) / kLine * kLine;
    signature->workspace_bytes =
        shares_ * static_cast<int64_t>(sizeof(float)) + ReduceScratch(threads());
    return {};
  }

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    const double factor = kKind == Kind::kMean ? 1.0 / Count(x.shape) : 1.0;
    Reduce(Along(x.shape), kKind == Kind::kMax ? kLargest : kSum, x.f32(), {y.f32(), false, factor},
           Scratch(call));
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView &dx = call.input_grads[0], &dy = call.output_grads[0];
    const bool sum = Accumulates(call, 0);
    const Loops<2> loops = Along(dx.shape);
    auto* const shares = static_cast<float*>(call.workspace);
    if (kKind == Kind::kMax) {
      LargestGradient(call, loops, shares);
      return {};
    }
    const float* source = dy.f32();
    if (kKind == Kind::kMean) {
      ScaleRow(source, static_cast<float>(1.0 / Count(dx.shape)), shares, dy.count());
      source = shares;
    }
    Loops<2> back = loops;
    std::swap(back.strides[0], back.strides[1]);
    Copy(back, source, dx.f32(), sum);
    return {};
  }

  // Elements of x, and where each goes in y.
  Loops<2> Along(const Shape& x) const noexcept {
    Shape kept = x;
    for (int32_t i = 0; i < x.ndim; ++i) {
      if ((given_.axes >> i & 1) != 0) kept[i] = 1;
    }
    return {x, {DenseStrides(x), BroadcastStrides(kept, x)}};
  }
  double Count(const Shape& x) const noexcept {
    double count = 1;
    for (int32_t i = 0; i < x.ndim; ++i) {
      if ((given_.axes >> i & 1) != 0) count *= static_cast<double>(x[i]);
    }
    return count;
  }
  void* Scratch(const OpCall& call) const noexcept {
    return static_cast<float*>(call.workspace) + shares_;
  }

  // Equal largest numbers share the gradient.
  void LargestGradient(const OpCall& call, const Loops<2>& loops, float* shares) const noexcept {
    const TensorView &x = call.inputs[0], &y = call.outputs[0], &dx = call.input_grads[0];
    const float* dy = call.output_grads[0].f32();
    const int64_t stride = loops.strides[1][loops.Last()];
    Reduce(loops, kSum, {shares, false}, Scratch(call),
           [&](const auto& offsets, int64_t count, float* buffer) {
             MarkLargest(x.f32() + offsets[0], y.f32() + offsets[1], stride, buffer, count);
             return buffer;
           });
    for (int64_t i = 0; i < y.count(); ++i) shares[i] = dy[i] / shares[i];
    const bool sum = Accumulates(call, 0);
    ForAllPieces(loops, [&](const auto& offsets, int64_t count) {
      ShareGradient(x.f32() + offsets[0], y.f32() + offsets[1], shares + offsets[1], stride,
                    dx.f32() + offsets[0], sum, count);
    });
  }

  int64_t shares_ = 0;  // floats of the workspace before the scratch of Reduce
};

}  // namespace

const OpFactory kMakeReduceMax = kit::NewOp<ReduceOp<Kind::kMax>>;
const OpFactory kMakeReduceMean = kit::NewOp<ReduceOp<Kind::kMean>>;
const OpFactory kMakeReduceSum = kit::NewOp<ReduceOp<Kind::kSum>>;

}  // namespace engine::cpu_ops
