// relu, gelu, tanh: y = f(x). add, accumulate: y = a + b.
#include "kernels/elementwise.h"

#include <string_view>

#include "cuda_op.h"

namespace engine::cuda_ops {
namespace {

// `kReadsOutput`: the derivative is computed from y, else from x; an op that reads its input is not
// done in place.
template <typename Function, bool kReadsOutput>
class ElementwiseOp final : public CudaOp {
 public:
  using CudaOp::CudaOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferFunction(Inferring(inputs, signature), kReadsOutput);
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    return WithElement(y.dtype, [&]<typename T>(T) {
      return Launched(LaunchFunction<Function>(As<const T>(x), As<T>(y), y.count(), stream),
                      "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& read = (kReadsOutput ? call.outputs : call.inputs)[0];
    const TensorView &dy = call.output_grads[0], &dx = call.input_grads[0];
    return WithElement(dx.dtype, [&]<typename T>(T) {
      return Launched(
          LaunchFunctionGradient<Function>(As<const T>(read), As<const T>(dy), As<T>(dx),
                                           Accumulates(call, 0), dx.count(), stream),
          "backward");
    });
  }
};

cudaError_t Add(const TensorView& a, const TensorView& b, const TensorView& y,
                cudaStream_t stream) noexcept {
  return WithElement(y.dtype, [&]<typename T>(T) {
    return LaunchSum(As<const T>(a), As<const T>(b), As<T>(y), y.count(), stream);
  });
}

// "accumulate" adds gradients, also those of parameters, which are float32 in every run.
class AddOp final : public CudaOp {
 public:
  explicit AddOp(const OpContext& context) noexcept
      : CudaOp(context), takes_float32_(std::string_view(context.name) == "accumulate") {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferSum(Inferring(inputs, signature), takes_float32_);
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return Launched(Add(call.inputs[0], call.inputs[1], call.outputs[0], stream), "forward");
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    ENGINE_RETURN_IF_ERROR(PassGradient(call, call.output_grads[0], 0, stream));
    return PassGradient(call, call.output_grads[0], 1, stream);
  }

 private:
  const bool takes_float32_;
};

}  // namespace

// Same memory, where the op is done in place or the gradients are one: nothing is to be moved.
Status PassGradient(const TensorView& source, const TensorView& target, bool sum,
                    cudaStream_t stream) noexcept {
  if (source.data == target.data || target.count() == 0) return {};
  if (sum) return ToStatus(Add(target, source, target, stream), "adding a gradient");
  return ToStatus(cudaMemcpyAsync(target.data, source.data, target.size_bytes(),
                                  cudaMemcpyDeviceToDevice, stream),
                  "passing a gradient on");
}

Status PassGradient(const OpCall& call, const TensorView& source, int32_t input,
                    cudaStream_t stream) noexcept {
  const auto i = static_cast<size_t>(input);
  if (!WantsGradient(call, i)) return {};
  return PassGradient(source, call.input_grads[i], Accumulates(call, input), stream);
}

const OpFactory kMakeRelu = kit::NewOp<ElementwiseOp<ReluFunction, true>>;
const OpFactory kMakeGelu = kit::NewOp<ElementwiseOp<GeluFunction, false>>;
const OpFactory kMakeTanh = kit::NewOp<ElementwiseOp<TanhFunction, true>>;
const OpFactory kMakeAdd = kit::NewOp<AddOp>;

}  // namespace engine::cuda_ops
