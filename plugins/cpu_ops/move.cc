// Ops that only move elements: y has those of x at other places. The gradient goes back along the
// same strides; where an element of x is in y several times, it is a sum.
#include <algorithm>
#include <cstring>

#include "cpu_op.h"
#include "kit/array_move_shapes.h"
#include "parallel.h"
#include "strided.h"

namespace engine::cpu_ops {
namespace {

// The elements stay where they are: y is a view of x, and its gradient that of x. But a batch in
// float32 is rounded in a run of bfloat16.
class ReshapeOp final : public kit::ShapedOp<CpuOp, kit::ReshapeRule> {
 public:
  using ShapedOp::ShapedOp;
  bool TakesBFloat16() const noexcept override { return true; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    if (x.dtype != y.dtype) Convert(x, y);
    return {};
  }
  Status DoBackward(const OpCall& call) noexcept override {
    PassGradient(call, call.output_grads[0], 0);
    return {};
  }
};

// Repeated dimensions of x have a stride of 0 in the loops over y, so that forward is a copy and
// backward the reduction over them.
class ExpandOp final : public kit::ShapedOp<CpuOp, kit::ExpandRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    signature->workspace_bytes = ReduceScratch(threads());
    return {};
  }

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    Copy({y.shape, {BroadcastStrides(x.shape, y.shape), DenseStrides(y.shape)}}, x.f32(), y.f32(),
         false);
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView &dx = call.input_grads[0], &dy = call.output_grads[0];
    const Loops<2> loops(dy.shape, {DenseStrides(dy.shape), BroadcastStrides(dx.shape, dy.shape)});
    Reduce(loops, kSum, dy.f32(), {dx.f32(), Accumulates(call, 0)}, call.workspace);
    return {};
  }
};

// Loops run in the order of what is written, y or dx: reads may be far apart, writes are not.
class TransposeOp final : public kit::ShapedOp<CpuOp, kit::TransposeRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    const Strides of_x = DenseStrides(x.shape);
    Strides by_y = {};
    for (size_t i = 0; i < by_y.size(); ++i) by_y[i] = of_x[static_cast<size_t>(given_.order[i])];
    Copy({y.shape, {by_y, DenseStrides(y.shape)}}, x.f32(), y.f32(), false);
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView &dx = call.input_grads[0], &dy = call.output_grads[0];
    const Strides of_y = DenseStrides(dy.shape);
    Strides by_x = {};
    for (int32_t i = 0; i < dy.shape.ndim; ++i) {
      by_x[static_cast<size_t>(given_.order[i])] = of_y[static_cast<size_t>(i)];
    }
    Copy({dx.shape, {by_x, DenseStrides(dx.shape)}}, dy.f32(), dx.f32(), Accumulates(call, 0));
    return {};
  }
};

// Each input is copied to its part of y. One without samples among others is repeated for each
// sample, as by expand.
class ConcatOp final : public kit::ShapedOp<CpuOp, kit::ConcatRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    signature->workspace_bytes = ReduceScratch(threads());
    return {};
  }

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& y = call.outputs[0];
    int64_t begin = 0;
    for (const TensorView& x : call.inputs) {
      const Part part(given_.axis, x.shape, y.shape, &begin);
      Copy({part.shape, {part.by_x, part.by_y}}, x.f32(), y.f32() + part.offset, false);
    }
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView& dy = call.output_grads[0];
    int64_t begin = 0;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      const Part part(given_.axis, call.inputs[i].shape, dy.shape, &begin);
      if (!WantsGradient(call, i)) continue;
      const TensorView& dx = call.input_grads[i];
      const float* const source = dy.f32() + part.offset;
      const bool sum = Accumulates(call, static_cast<int32_t>(i));
      if (part.shape == dx.shape) {
        Copy({part.shape, {part.by_y, part.by_x}}, source, dx.f32(), sum);
        continue;
      }
      // One that all samples share.
      Reduce({part.shape, {part.by_y, part.by_x}}, kSum, source, {dx.f32(), sum}, call.workspace);
    }
    return {};
  }

  // Where an input is in y.
  struct Part {
    Shape shape;
    Strides by_x, by_y;
    int64_t offset;

    Part(int32_t axis, const Shape& x, const Shape& y, int64_t* begin) noexcept
        : shape(y), by_y(DenseStrides(y)) {
      shape[axis] = x[axis];
      by_x = BroadcastStrides(x, shape);
      offset = *begin * by_y[static_cast<size_t>(axis)];
      *begin += x[axis];
    }
  };
};

// The part of x has the strides of x, that of the axis times the step, which may be negative. What is
// not in y has a gradient of 0.
class SliceOp final : public kit::ShapedOp<CpuOp, kit::SliceRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    int64_t offset = 0;
    const Strides by_x = PlacesIn(x.shape, &offset);
    Copy({y.shape, {by_x, DenseStrides(y.shape)}}, x.f32() + offset, y.f32(), false);
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView &dx = call.input_grads[0], &dy = call.output_grads[0];
    int64_t offset = 0;
    const Strides by_x = PlacesIn(dx.shape, &offset);
    ZeroGradient(call, 0);
    Copy({dy.shape, {DenseStrides(dy.shape), by_x}}, dy.f32(), dx.f32() + offset, true);
    return {};
  }

  Strides PlacesIn(const Shape& x, int64_t* offset) const noexcept {
    Strides strides = DenseStrides(x);
    int64_t& stride = strides[static_cast<size_t>(given_.range.axis)];
    *offset = x.Count() == 0 ? 0 : given_.range.begin * stride;
    stride *= given_.range.step;
    return strides;
  }
};

// Outside of x a padding repeats what is inside: axis by axis, the last one first, whole slabs of y
// are copied within y. The gradient goes the same way back, in a copy of that of y.
class PadOp final : public kit::ShapedOp<CpuOp, kit::PadRule> {
  using ShapedOp::ShapedOp;

  Status Plan(Array<const TensorSpec>, OpSignature* signature) noexcept override {
    if (!is_constant()) {
      signature->workspace_bytes =
          signature->outputs[0].shape.Count() * static_cast<int64_t>(sizeof(float));
    }
    return {};
  }

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    if (is_constant()) {
      ForElements(y.count(), [&](int64_t begin, int64_t end) {
        std::fill(y.f32() + begin, y.f32() + end, given_.value);
      });
    }
    Copy({x.shape, {DenseStrides(x.shape), DenseStrides(y.shape)}}, x.f32(),
         y.f32() + Inside(y.shape), false);
    for (int32_t axis = x.shape.ndim; !is_constant() && axis-- > given_.first;) {
      ForSlabs(x.shape, y.shape, axis, [&](const Loops<2>& slab, int64_t inner, int64_t outer) {
        Copy(slab, y.f32() + inner, y.f32() + outer, false);
      });
    }
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView &dx = call.input_grads[0], &dy = call.output_grads[0];
    const float* source = dy.f32();
    if (!is_constant() && dy.count() > 0) {
      auto* const folded = static_cast<float*>(call.workspace);
      std::memcpy(folded, source, dy.size_bytes());
      for (int32_t axis = given_.first; axis < dx.shape.ndim; ++axis) {
        ForSlabs(dx.shape, dy.shape, axis, [&](const Loops<2>& slab, int64_t inner, int64_t outer) {
          Copy(slab, folded + outer, folded + inner, true);
        });
      }
      source = folded;
    }
    Copy({dx.shape, {DenseStrides(dy.shape), DenseStrides(dx.shape)}}, source + Inside(dy.shape),
         dx.f32(), Accumulates(call, 0));
    return {};
  }

  bool is_constant() const noexcept { return given_.mode == kit::PadRule::Mode::kConstant; }
  int64_t Before(int32_t axis) const noexcept {
    return axis < given_.first ? 0 : given_.before[axis - given_.first];
  }

  // The first element of x in y.
  int64_t Inside(const Shape& y) const noexcept {
    if (y.Count() == 0) return 0;
    int64_t offset = 0;
    for (int32_t i = given_.first; i < y.ndim; ++i) offset += Before(i) * y.Count(i + 1);
    return offset;
  }

  // body(slab, offset inside, offset outside) for the positions of the axis beside x. Axes before it
  // have the extents of x, those behind it all of y.
  template <typename Body>
  void ForSlabs(const Shape& x, const Shape& y, int32_t axis, const Body& body) const noexcept {
    Shape slab = y;
    int64_t offset = 0;
    for (int32_t i = 0; i < axis; ++i) {
      slab[i] = x[i];
      offset += Before(i) * y.Count(i + 1);
    }
    slab[axis] = 1;
    const int64_t before = Before(axis), stride = y.Count(axis + 1);
    const Strides strides = DenseStrides(y);
    for (int64_t i = -before; i < y[axis] - before; ++i) {
      const int64_t inner = given_.Source(i, x[axis]);
      if (inner == i) continue;
      body(Loops<2>(slab, {strides, strides}), offset + (before + inner) * stride,
           offset + (before + i) * stride);
    }
  }
};

// Rows of x by index. An index may be there several times: gradients of a row are added up in the
// order of indices.
class GatherOp final : public kit::ShapedOp<CpuOp, kit::GatherRule> {
  using ShapedOp::ShapedOp;

  Status DoForward(const OpCall& call) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    const int64_t inner = x.shape.Count(given_.axis + 1), positions = y.shape[given_.axis];
    ForRows(y.shape.Count(0, given_.axis) * positions, inner, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float* const row = x.f32() + Source(x, i / positions, i % positions) * inner;
        std::copy_n(row, inner, y.f32() + i * inner);
      }
    });
    return {};
  }

  // Threads share what is outside of the axis, or else what is inside: each sum has one order.
  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView &dx = call.input_grads[0], &dy = call.output_grads[0];
    const int64_t outer = dx.shape.Count(0, given_.axis), inner = dx.shape.Count(given_.axis + 1);
    const int64_t positions = dy.shape[given_.axis];
    ZeroGradient(call, 0);
    const auto add = [&](int64_t sample, int64_t begin, int64_t end) {
      for (int64_t i = 0; i < positions; ++i) {
        float* const row = dx.f32() + Source(dx, sample, i) * inner;
        Add(row, dy.f32() + (sample * positions + i) * inner, row, begin, end);
      }
    };
    const int32_t parts = PartCount(dy.count(), kElementGrain);
    if (outer == 1) {
      ForEachPart(parts, inner, kLine,
                  [&](int32_t, int64_t begin, int64_t end) { add(0, begin, end); });
      return {};
    }
    ForEachPart(parts, outer, 1, [&](int32_t, int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) add(i, 0, inner);
    });
    return {};
  }

  int64_t Source(const TensorView& x, int64_t outer, int64_t position) const noexcept {
    const int64_t extent = x.shape[given_.axis];
    return outer * extent + given_.Source(position, extent);
  }
};

}  // namespace

const OpFactory kMakeConcat = kit::NewOp<ConcatOp>;
const OpFactory kMakeExpand = kit::NewOp<ExpandOp>;
const OpFactory kMakeGather = kit::NewOp<GatherOp>;
const OpFactory kMakePad = kit::NewOp<PadOp>;
const OpFactory kMakeReshape = kit::NewOp<ReshapeOp>;
const OpFactory kMakeSlice = kit::NewOp<SliceOp>;
const OpFactory kMakeTranspose = kit::NewOp<TransposeOp>;

}  // namespace engine::cpu_ops
