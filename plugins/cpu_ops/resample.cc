// avg_pool: the mean of each window of a channels-last plane, (B, H, W, C) to (B, H', W', C). What is
// padded is a zero, or, not counted, no element of a window, as in PyTorch. global_avg_pool: the
// mean over all positions, (B, ..., C) to (B, C), which are the one window of a plane of one row.
// resize: (B, H, W, C) to another height and width.
//
// All are a map of rows after one of columns; Backward is the transposed map.
#include <algorithm>
#include <new>
#include <type_traits>

#include "axis_map.h"
#include "cpu_op.h"
#include "kit/image_op_shapes.h"

namespace engine::cpu_ops {
namespace {

// A window counts what it has of the axis with its padding, or of the axis alone.
AxisMap MeanMap(const kit::Window& window, bool count_padding, int64_t inputs, int64_t outputs) {
  AxisMap map;
  for (int64_t i = 0; i < outputs; ++i) {
    const kit::Window::Range taps = window.Taps(i, inputs);
    const int64_t padded = std::min(window.kernel, inputs + window.after - window.InputOf(i, 0));
    const auto count = static_cast<float>(count_padding ? padded : taps.size());
    for (int64_t tap = taps.begin; tap < taps.end; ++tap) {
      map.Add(window.InputOf(i, tap), 1.0f / count);
    }
    map.EndTarget();
  }
  return map;
}

AxisMap ResizeMap(const kit::ResizeAttributes& given, int64_t inputs, int64_t outputs) {
  AxisMap map;
  for (int64_t i = 0; i < outputs; ++i) {
    const kit::ResizeAttributes::Source source = given.SourceOf(i, outputs, inputs);
    map.Add(source.low, 1.0f - source.share);
    if (source.high > source.low) map.Add(source.high, source.share);
    map.EndTarget();
  }
  return map;
}

enum class Method { kAverage, kGlobalAverage, kResize };

template <Method kKind>
class ResampleOp final : public CpuOp {
 public:
  ResampleOp(const OpContext& context, const Options& attributes) noexcept
      : CpuOp(context), given_(attributes) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference op = Inferring(inputs, signature);
    if constexpr (kKind == Method::kAverage) ENGINE_RETURN_IF_ERROR(kit::InferPool(op, given_));
    if constexpr (kKind == Method::kResize) ENGINE_RETURN_IF_ERROR(kit::InferResize(op, given_));
    if (kKind == Method::kGlobalAverage) ENGINE_RETURN_IF_ERROR(kit::InferGlobalPool(op));
    const Shape &x = inputs[0].shape, &y = signature->outputs[0].shape;
    const bool global = kKind == Method::kGlobalAverage;
    height_ = global ? 1 : x[1];
    width_ = global ? x.Count(1, -1) : x[2];
    try {
      rows_ = Map(0, height_, global ? 1 : y[1]);
      columns_ = Map(1, width_, global ? 1 : y[2]);
      rows_back_ = rows_.Transposed(height_);
      columns_back_ = columns_.Transposed(width_);
    } catch (const std::bad_alloc&) {
      return Status::Error(StatusCode::kResourceExhausted, "%s: no memory for its plan", name());
    }
    return {};
  }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    const TensorView& x = call.inputs[0];
    MapPlanes({rows_, columns_, x.f32(), call.outputs[0].f32(), x.shape[0], height_, width_,
               x.shape[-1], false});
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    const TensorView& dx = call.input_grads[0];
    MapPlanes({rows_back_, columns_back_, call.output_grads[0].f32(), dx.f32(), dx.shape[0],
               rows_.targets(), columns_.targets(), dx.shape[-1], Accumulates(call, 0)});
    return {};
  }

  struct None {
    explicit None(const Options&) noexcept {}
  };
  struct Average : kit::PoolAttributes {
    explicit Average(const Options& attributes) noexcept : PoolAttributes(attributes, false) {}
  };
  using Attributes =
      std::conditional_t<kKind == Method::kAverage, Average,
                         std::conditional_t<kKind == Method::kResize, kit::ResizeAttributes, None>>;

  // Of rows (0) or columns (1).
  AxisMap Map(int axis, int64_t inputs, int64_t outputs) const {
    if constexpr (kKind == Method::kResize) return ResizeMap(given_, inputs, outputs);
    if constexpr (kKind == Method::kAverage) {
      const kit::PlaneWindow& window = given_.window;
      return MeanMap(axis == 0 ? window.rows : window.columns, given_.count_padding, inputs,
                     outputs);
    }
    return MeanMap({.kernel = inputs}, true, inputs, outputs);
  }

  const Attributes given_;
  int64_t height_ = 0, width_ = 0;  // of the input
  AxisMap rows_, columns_, rows_back_, columns_back_;
};

}  // namespace

const OpFactory kMakeAvgPool = kit::NewOp<ResampleOp<Method::kAverage>>;
const OpFactory kMakeGlobalAvgPool = kit::NewOp<ResampleOp<Method::kGlobalAverage>>;
const OpFactory kMakeResize = kit::NewOp<ResampleOp<Method::kResize>>;

}  // namespace engine::cpu_ops
