// max_pool, avg_pool: the largest or the mean of each window of a channels-last plane, (B, H, W, C)
// to (B, H', W', C). What is padded is no element of a window for the maximum and a zero for the
// mean, as in PyTorch. global_avg_pool: the mean over all positions, (B, ..., C) to (B, C), which
// are the one window of a plane of one row. Saved for backward of max_pool: the tap of each output.
#include "kernels/pool.h"

#include "cuda_op.h"
#include "kit/image_op_shapes.h"

namespace engine::cuda_ops {
namespace {

enum class Kind { kMax, kAverage, kGlobalAverage };

template <Kind kKind>
class PoolOp final : public CudaOp {
 public:
  PoolOp(const OpContext& context, const Options& attributes) noexcept : CudaOp(context) {
    if constexpr (kKind != Kind::kGlobalAverage) window_ = kit::PoolWindow(attributes);
  }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    if constexpr (kKind == Kind::kGlobalAverage) {
      ENGINE_RETURN_IF_ERROR(kit::InferGlobalAvgPool(inference));
      const Shape& x = inputs[0].shape;
      const int64_t positions = x.Count(1, -1);
      SetShape({.kernel = positions}, {0, 1, positions, x[-1]}, {0, 1, 1, x[-1]}, positions);
      return {};
    }
    ENGINE_RETURN_IF_ERROR(kit::InferPool(inference, window_));
    const Shape& y = signature->outputs[0].shape;
    const bool is_max = kKind == Kind::kMax;
    SetShape(window_, inputs[0].shape, y, is_max ? 0 : window_.kernel * window_.kernel);
    if (is_max) signature->saved_bytes = y.Count();  // a tap each
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&]<typename T>(T) {
      return Launched(LaunchPool(ShapeOf(call), As<const T>(call.inputs[0]), As<T>(call.outputs[0]),
                                 static_cast<uint8_t*>(call.saved), stream),
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

 private:
  // x and y as (B, H, W, C).
  void SetShape(const kit::Window& window, const Shape& x, const Shape& y,
                int64_t divisor) noexcept {
    shape_ = {.kernel = static_cast<int32_t>(window.kernel),
              .stride = static_cast<int32_t>(window.stride),
              .padding = static_cast<int32_t>(window.padding),
              .height = x[1],
              .width = x[2],
              .channels = x[3],
              .output_height = y[1],
              .output_width = y[2],
              .divisor = static_cast<float>(divisor)};
  }

  PoolShape ShapeOf(const OpCall& call) const noexcept {
    PoolShape shape = shape_;
    shape.samples = call.inputs[0].shape[0];
    return shape;
  }

  kit::Window window_;
  PoolShape shape_;
};

}  // namespace

const OpFactory kMakeMaxPool = kit::NewOp<PoolOp<Kind::kMax>>;
const OpFactory kMakeAvgPool = kit::NewOp<PoolOp<Kind::kAverage>>;
const OpFactory kMakeGlobalAvgPool = kit::NewOp<PoolOp<Kind::kGlobalAverage>>;

}  // namespace engine::cuda_ops
