// max_pool, avg_pool: the largest or the mean of each window of a channels-last plane, (B, H, W, C)
// to (B, H', W', C). What is padded is no element of a window for the maximum and a zero for the
// mean, as in PyTorch. Saved for backward of max_pool: the tap of each output.
#include "kernels/pool.h"

#include <new>

#include "engine/image_op_shapes.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

class PoolOp : public CudaOp {
 public:
  PoolOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context), window_(kit::PoolWindow(attributes)) {
    shape_.kernel = static_cast<int32_t>(window_.kernel);
    shape_.stride = static_cast<int32_t>(window_.stride);
    shape_.padding = static_cast<int32_t>(window_.padding);
  }

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferPool(Inferring(inputs, signature), window_));
    const Shape &x = inputs[0].shape, &y = signature->outputs[0].shape;
    shape_.height = x[1];
    shape_.width = x[2];
    shape_.channels = x[3];
    shape_.output_height = y[1];
    shape_.output_width = y[2];
    return {};
  }

 protected:
  PoolShape ShapeOf(const OpCall& call) const noexcept {
    PoolShape shape = shape_;
    shape.samples = call.inputs[0].shape[0];
    return shape;
  }

 private:
  const kit::Window window_;
  PoolShape shape_;
};

class MaxPoolOp final : public PoolOp {
 public:
  using PoolOp::PoolOp;

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(PoolOp::Infer(inputs, signature));
    signature->saved_bytes = signature->outputs[0].shape.Count();  // a tap each
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return Launched(LaunchMaxPool(ShapeOf(call), static_cast<const T*>(call.inputs[0].data),
                                    static_cast<T*>(call.outputs[0].data),
                                    static_cast<uint8_t*>(call.saved), stream),
                      "largest of windows");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return Launched(LaunchMaxPoolGradient(
                          ShapeOf(call), static_cast<const T*>(call.output_grads[0].data),
                          static_cast<const uint8_t*>(call.saved),
                          static_cast<T*>(call.input_grads[0].data), Accumulates(call, 0), stream),
                      "gradient of the largest of windows");
    });
  }
};

class AvgPoolOp final : public PoolOp {
 public:
  using PoolOp::PoolOp;

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return Launched(LaunchAvgPool(ShapeOf(call), static_cast<const T*>(call.inputs[0].data),
                                    static_cast<T*>(call.outputs[0].data), stream),
                      "means of windows");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      return Launched(LaunchAvgPoolGradient(
                          ShapeOf(call), static_cast<const T*>(call.output_grads[0].data),
                          static_cast<T*>(call.input_grads[0].data), Accumulates(call, 0), stream),
                      "gradient of means of windows");
    });
  }
};

}  // namespace

Op* MakeMaxPool(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) MaxPoolOp(context, attributes);
}

Op* MakeAvgPool(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) AvgPoolOp(context, attributes);
}

}  // namespace engine::cuda_ops
