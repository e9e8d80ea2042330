// As array_op_shapes.h, of the ops that only move elements: y has elements of x at other places, and
// the gradient of x is the sum of those of y at the places that an element went to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "engine/op.h"
#include "engine/options.h"
#include "engine/status.h"
#include "kit/array_op_shapes.h"
#include "kit/op.h"
#include "kit/op_shapes.h"

namespace engine::kit {

inline Status ListError(const Inference& op, const char* list, const char* need) noexcept {
  return Status::Error(StatusCode::kConfig, "%s: '%s' does not fit %s; it needs %s", op.name, list,
                       SpecText(op.inputs[0]).text, need);
}

// The shape of the samples of x, if it has any, followed by `behind`.
inline Shape Behind(const TensorSpec& x, const DimList& behind) noexcept {
  Shape y;
  if (x.batched != 0) y.dims[y.ndim++] = x.shape[0];
  for (size_t i = 0; i < behind.count && y.ndim < kMaxDims; ++i) {
    y.dims[y.ndim++] = behind.values[i];
  }
  return y;
}

inline bool FitsBehind(const TensorSpec& x, const DimList& behind) noexcept {
  return behind.count + static_cast<size_t>(FirstAxis(x)) <= size_t{kMaxDims};
}

// The elements of x in order; one extent may be -1: what is left. A view unless it is rounded.
struct ReshapeRule {
  DimList shape;

  explicit ReshapeRule(const Options& attributes) noexcept : shape(attributes.Ints("shape")) {}

  Status Infer(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
    const TensorSpec& x = op.inputs[0];
    if (!op.IsBatch(0)) return op.ActivationError(0, "");
    Shape y = Behind(x, shape);
    const int32_t first = FirstAxis(x);
    int64_t known = 1, left = -1;
    bool fits = FitsBehind(x, shape);
    for (int32_t i = first; i < y.ndim; ++i) {
      fits = fits && (y[i] >= 1 || (y[i] == -1 && left < 0));
      if (y[i] == -1) left = i;
      if (y[i] > 0)
        known *= std::min(y[i], x.shape.Count() + 1);  // what is too many does not overflow
      fits = fits && known <= x.shape.Count();
    }
    if (fits && left >= 0) y.dims[left] = x.shape.Count(first) / known;
    if (!fits || y.Count(first) != x.shape.Count(first)) {
      return ListError(op, "shape", "as many elements behind the samples, with at most one -1");
    }
    op.AddOutput(y);
    return op.Passes(op.IsActivation(0));
  }
};

// x broadcast to the shape; -1: the extent of x.
struct ExpandRule {
  DimList shape;

  explicit ExpandRule(const Options& attributes) noexcept : shape(attributes.Ints("shape")) {}

  Status Infer(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(CheckActivation(op));
    const TensorSpec& x = op.inputs[0];
    TensorSpec y = {Behind(x, shape), x.dtype, x.batched};
    for (int32_t i = 1; i <= std::min(y.shape.ndim, x.shape.ndim); ++i) {
      if (y.shape[-i] == -1) y.shape[-i] = x.shape[-i];
    }
    const Shape wanted = y.shape;
    const bool positive = std::all_of(wanted.dims, wanted.dims + wanted.ndim,
                                      [](int64_t extent) { return extent >= 1; });
    if (!FitsBehind(x, shape) || !positive || !Broadcast(x, &y) || !(y.shape == wanted)) {
      return ListError(op, "shape",
                       "the extents of x, where these are not 1, and as many with samples");
    }
    op.AddOutput(y.shape);
    return op.Gradients(1, 0);
  }
};

// Axis order[i] of x is axis i of y; behind the samples. None: in reverse.
struct TransposeRule {
  DimList given;
  int32_t order[kMaxDims] = {};

  explicit TransposeRule(const Options& attributes) noexcept : given(attributes.Ints("order")) {}

  Status Infer(const Inference& op) noexcept {
    ENGINE_RETURN_IF_ERROR(CheckActivation(op));
    const TensorSpec& x = op.inputs[0];
    const int32_t first = FirstAxis(x), ndim = x.shape.ndim;
    uint32_t seen = 0;
    Shape y = x.shape;
    for (int32_t i = 0; i < ndim; ++i) {
      order[i] = i < first ? i : ndim - 1 - (i - first);
      if (i >= first && given.Fits(first, ndim)) order[i] = static_cast<int32_t>(given[i - first]);
      seen |= 1u << order[i];
      if (order[i] < ndim) y[i] = x.shape[order[i]];
    }
    const bool fits = given.count == 0 || given.Fits(first, ndim);
    if (!fits || seen != (1u << ndim) - 1) {
      return ListError(op, "order", "each axis of x once, without that of samples");
    }
    op.AddOutput(y);
    return op.Gradients(1, 0);
  }
};

// Inputs one behind the other along the axis. One without samples among others with them has an
// extent of 1 in their place, and is there in each.
struct ConcatRule {
  int64_t given;
  int32_t axis = 0;

  explicit ConcatRule(const Options& attributes) noexcept : given(attributes.Int("axis")) {}

  Status Infer(const Inference& op) noexcept {
    const size_t count = op.inputs.size();
    if (count < 2 || count > size_t{kMaxOpInputs}) {
      return Status::Error(StatusCode::kConfig, "%s: got %zu inputs; it needs 2 to %d", op.name,
                           count, kMaxOpInputs);
    }
    ENGINE_RETURN_IF_ERROR(op.CheckInputCount(count));
    TensorSpec y = op.inputs[0];
    for (const TensorSpec& x : op.inputs) {
      if (x.batched != 0 && y.batched == 0) y = x;
    }
    const int64_t from_0 = given < 0 ? given + y.shape.ndim : given;
    if (from_0 < FirstAxis(y) || from_0 >= y.shape.ndim) return AxisError(op, given);
    axis = static_cast<int32_t>(from_0);
    y.shape[axis] = 0;
    for (size_t i = 0; i < count; ++i) {
      Shape x = op.inputs[i].shape;
      const bool shared = op.inputs[i].batched == 0 && y.batched != 0;
      bool fits = op.IsActivation(i) && x.ndim == y.shape.ndim && (!shared || x[0] == 1);
      for (int32_t j = shared ? 1 : 0; fits && j < x.ndim; ++j) {
        fits = j == axis || x[j] == y.shape[j];
      }
      if (!fits) return op.ActivationError(i, " with the extents of the others but along the axis");
      y.shape[axis] += x[axis];
    }
    AddOutput(op.signature, y.shape, y.batched, op.activation);
    return op.Gradients((1u << count) - 1, 0);
  }
};

// Positions begin, begin + step, ... of an axis.
struct AxisRange {
  int32_t axis = 0;
  int64_t begin = 0, step = 1, count = 0;
};

// As x[begin:end:step] in NumPy: what is beyond an end is cut.
struct SliceRule {
  int64_t axis, begin, end, step;
  AxisRange range;

  explicit SliceRule(const Options& attributes) noexcept
      : axis(attributes.Int("axis")),
        begin(attributes.Int("begin")),
        end(attributes.Int("end")),
        step(attributes.Int("step")) {}

  Status Infer(const Inference& op) noexcept {
    ENGINE_RETURN_IF_ERROR(CheckActivation(op));
    ENGINE_RETURN_IF_ERROR(ResolveAxis(op, axis, &range.axis));
    Shape y = op.inputs[0].shape;
    const int64_t extent = y[range.axis];
    const int64_t lowest = step > 0 ? 0 : -1, highest = step > 0 ? extent : extent - 1;
    const auto inside = [&](int64_t position) {
      return std::clamp(position < 0 ? position + extent : position, lowest, highest);
    };
    const int64_t distance = inside(end) - inside(begin);
    range.begin = inside(begin);
    range.step = step;
    range.count = step == 0 ? 0 : (distance + step - (step > 0 ? 1 : -1)) / step;
    if (range.count < 1) {
      return Status::Error(
          StatusCode::kConfig,
          "%s: positions %lld to %lld in steps of %lld are none of axis %d of %s; name some",
          op.name, static_cast<long long>(begin), static_cast<long long>(end),
          static_cast<long long>(step), range.axis, SpecText(op.inputs[0]).text);
    }
    y[range.axis] = range.count;
    op.AddOutput(y);
    return op.Gradients(1, 0);
  }
};

// The positions `indices` of an axis, which may repeat.
struct GatherRule {
  int64_t given;
  size_t count;
  std::unique_ptr<int64_t[]> copied;  // of the attribute, which is borrowed
  int32_t axis = 0;

  explicit GatherRule(const Options& attributes) noexcept
      : given(attributes.Int("axis")),
        count(attributes.Ints("indices").size()),
        copied(new (std::nothrow) int64_t[count]) {
    if (copied != nullptr) std::ranges::copy(attributes.Ints("indices"), copied.get());
  }
  // Counted from 0.
  int64_t Source(int64_t position, int64_t extent) const noexcept {
    const int64_t index = copied[static_cast<size_t>(position)];
    return index < 0 ? index + extent : index;
  }

  Status Infer(const Inference& op) noexcept {
    if (copied == nullptr) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for %zu indices", op.name,
                           count);
    }
    const std::span<const int64_t> indices(copied.get(), count);
    ENGINE_RETURN_IF_ERROR(CheckActivation(op));
    ENGINE_RETURN_IF_ERROR(ResolveAxis(op, given, &axis));
    Shape y = op.inputs[0].shape;
    const int64_t extent = y[axis];
    const bool inside = std::all_of(indices.begin(), indices.end(), [&](int64_t index) {
      return index >= -extent && index < extent;
    });
    if (indices.empty() || !inside) {
      return ListError(op, "indices", "positions of the axis, at least one");
    }
    y[axis] = static_cast<int64_t>(indices.size());
    op.AddOutput(y);
    return op.Gradients(1, 0);
  }
};

// Elements around x, on each axis behind the samples.
struct PadRule {
  enum class Mode { kConstant, kReflect, kEdge };

  DimList before, after;
  float value;
  Mode mode;
  int32_t first = 0;  // axis that may have more

  explicit PadRule(const Options& attributes) noexcept
      : before(attributes.Ints("before")),
        after(attributes.Ints("after")),
        value(static_cast<float>(attributes.Float("value"))),
        mode(attributes.String("mode") == "reflect" ? Mode::kReflect
             : attributes.String("mode") == "edge"  ? Mode::kEdge
                                                    : Mode::kConstant) {}

  // Where an axis of `extent` has what is `offset` from its first element; -1: nowhere.
  int64_t Source(int64_t offset, int64_t extent) const noexcept {
    if (offset >= 0 && offset < extent) return offset;
    if (mode == Mode::kConstant) return -1;
    if (mode == Mode::kEdge) return offset < 0 ? 0 : extent - 1;
    return offset < 0 ? -offset : 2 * (extent - 1) - offset;
  }

  Status Infer(const Inference& op) noexcept {
    ENGINE_RETURN_IF_ERROR(CheckActivation(op));
    const TensorSpec& x = op.inputs[0];
    first = FirstAxis(x);
    Shape y = x.shape;
    bool fits = true;
    for (const DimList* list : {&before, &after}) {
      fits = fits && (list->count == 0 || list->Fits(first, y.ndim));
      for (int32_t i = first; fits && i < y.ndim; ++i) {
        y[i] += (*list)[i - first];
        // One mirror image: it has no second one of the element at the end.
        fits = mode != Mode::kReflect || (*list)[i - first] < x.shape[i];
      }
    }
    if (!fits) {
      return ListError(
          op, "before' and 'after",
          "a number for each axis but that of samples; reflected, less than its extent");
    }
    op.AddOutput(y);
    return op.Gradients(1, 0);
  }
};

}  // namespace engine::kit
