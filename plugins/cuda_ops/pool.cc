// max_pool, avg_pool: the largest or the mean of each window of a channels-last plane, (B, H, W, C)
// to (B, H', W', C). What is padded is no element of a window for the maximum and a zero, or nothing,
// for the mean, as in PyTorch. global_max_pool, global_avg_pool: over all positions, (B, ..., C) to
// (B, C), which are the one window of a plane of one row. Saved for backward of a maximum: the tap of
// each output.
#include "kernels/pool.h"

#include <optional>

#include "cuda_op.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

template <bool kMax, bool kGlobal>
class PoolOp final : public CudaOp {
 public:
  PoolOp(const OpContext& context, const Options& attributes) noexcept : CudaOp(context) {
    if constexpr (!kGlobal) given_.emplace(attributes, kMax);
  }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    if constexpr (kGlobal) {
      ENGINE_RETURN_IF_ERROR(kit::InferGlobalPool(inference));
      const Shape& x = inputs[0].shape;
      const int64_t positions = x.Count(1, -1);
      SetShape(kit::PlaneWindow(positions), {0, 1, positions, x[-1]}, {0, 1, 1, x[-1]});
    } else {
      ENGINE_RETURN_IF_ERROR(kit::InferPool(inference, *given_));
      SetShape(given_->window, inputs[0].shape, signature->outputs[0].shape);
    }
    const int64_t outputs = signature->outputs[0].shape.Count();
    if (kMax) signature->saved_bytes = outputs * shape_.tap_bytes();
    return {};
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(LaunchPool(ShapeOf(call), As<const T>(call.inputs[0]), As<T>(call.outputs[0]),
                                 call.saved, stream),
                      "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(LaunchPoolGradient(ShapeOf(call), As<const T>(call.output_grads[0]),
                                         static_cast<const uint8_t*>(call.saved),
                                         As<T>(call.input_grads[0]), Accumulates(call, 0), stream),
                      "backward");
    });
  }

  static PoolAxis AxisOf(const kit::Window& window, int64_t inputs, int64_t outputs) noexcept {
    const auto number = [](int64_t value) { return static_cast<int32_t>(value); };
    return {.inputs = inputs,
            .outputs = outputs,
            .kernel = number(window.kernel),
            .stride = number(window.stride),
            .before = number(window.before),
            .after = number(window.after),
            .dilation = number(window.dilation)};
  }

  // x and y as (B, H, W, C).
  void SetShape(const kit::PlaneWindow& window, const Shape& x, const Shape& y) noexcept {
    const bool padded = kGlobal || given_->count_padding;
    shape_ = {.rows = AxisOf(window.rows, x[1], y[1]),
              .columns = AxisOf(window.columns, x[2], y[2]),
              .channels = x[3],
              .kind = kMax     ? PoolKind::kMax
                      : padded ? PoolKind::kMeanOfPadded
                               : PoolKind::kMeanOfInputs};
  }

  PoolShape ShapeOf(const OpCall& call) const noexcept {
    PoolShape shape = shape_;
    shape.samples = call.inputs[0].shape[0];
    return shape;
  }

  std::optional<kit::PoolAttributes> given_;
  PoolShape shape_;
};

}  // namespace

const OpFactory kMakeMaxPool = kit::NewOp<PoolOp<true, false>>;
const OpFactory kMakeAvgPool = kit::NewOp<PoolOp<false, false>>;
const OpFactory kMakeGlobalMaxPool = kit::NewOp<PoolOp<true, true>>;
const OpFactory kMakeGlobalAvgPool = kit::NewOp<PoolOp<false, true>>;

}  // namespace engine::cuda_ops
