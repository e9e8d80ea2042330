// max_pool, avg_pool: the largest or the mean of each window of a channels-last plane, (B, H, W, C)
// to (B, H', W', C). What is padded is no element of a window for the maximum and a zero for the
// mean, as in PyTorch. Saved for backward of max_pool: the tap of each output.
#include "kernels/pool.h"

#include <new>

#include "ops.h"

namespace engine::cuda_ops {
namespace {

class PoolOp : public CudaOp {
 public:
  PoolOp(const OpContext& context, const Options& attributes) noexcept : CudaOp(context) {
    shape_.kernel = static_cast<int32_t>(attributes.Int("kernel"));
    shape_.stride = static_cast<int32_t>(attributes.Int("stride"));
    shape_.padding = static_cast<int32_t>(attributes.Int("padding"));
    if (shape_.stride == 0) shape_.stride = shape_.kernel;
  }

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(CheckInputCount(inputs, 1));
    const TensorSpec& x = inputs[0];
    if (!IsActivation(x) || x.shape.ndim != 4 || x.shape.Count(1) < 1) {
      return ActivationError(inputs, 0, " (B, H, W, C), channels last");
    }
    shape_.height = x.shape[1];
    shape_.width = x.shape[2];
    shape_.channels = x.shape[3];
    shape_.output_height = Positions(shape_.height);
    shape_.output_width = Positions(shape_.width);
    if (shape_.padding >= shape_.kernel || shape_.output_height < 1 || shape_.output_width < 1) {
      return InputError(inputs, 0,
                        "a padded plane that is not smaller than the kernel, and a kernel larger "
                        "than the padding");
    }
    AddOutput(signature,
              Shape{x.shape[0], shape_.output_height, shape_.output_width, shape_.channels},
              x.batched, activation());
    signature->differentiable_inputs = 1;
    signature->accumulates = 1;
    signature->backward_reads_inputs = 0;
    signature->backward_reads_outputs = 0;
    return {};
  }

 protected:
  PoolShape ShapeOf(const OpCall& call) const noexcept {
    PoolShape shape = shape_;
    shape.samples = call.inputs[0].shape[0];
    return shape;
  }

 private:
  // Positions of the window on an axis; 0 if it does not fit.
  int64_t Positions(int64_t extent) const noexcept {
    const int64_t padded = extent + 2 * int64_t{shape_.padding};
    return padded < shape_.kernel ? 0 : (padded - shape_.kernel) / shape_.stride + 1;
  }

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
