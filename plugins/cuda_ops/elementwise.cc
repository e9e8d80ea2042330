// y = f(x) for the functions of kernels/functions.h. add, accumulate: y = a + b.
#include "kernels/elementwise.h"

#include <string_view>
#include <type_traits>

#include "cuda_op.h"

namespace engine::cuda_ops {
namespace {

// With what its attributes say.
template <typename Function>
Function FunctionOf(const Options& attributes) noexcept {
  [[maybe_unused]] const auto number = [&](const char* name) {
    return static_cast<float>(attributes.Float(name));
  };
  if constexpr (std::is_same_v<Function, LeakyReluFunction>) return {number("slope")};
  if constexpr (std::is_same_v<Function, EluFunction>) return {number("alpha")};
  if constexpr (std::is_same_v<Function, ClipFunction>) return {number("min"), number("max")};
  if constexpr (std::is_same_v<Function, PowFunction>) return {number("exponent")};
  if constexpr (std::is_same_v<Function, ScaleFunction>) {
    return {number("factor"), number("offset")};
  }
  return {};
}

// An op that reads its input when it goes back is not done in place.
template <typename Function>
class ElementwiseOp final : public CudaOp {
 public:
  ElementwiseOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context), function_(FunctionOf<Function>(attributes)) {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferFunction(Inferring(inputs, signature), Function::kReadsOutput);
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    return WithElement(y.dtype, [&]<typename T>(T) {
      return Launched(LaunchFunction(As<const T>(x), As<T>(y), y.count(), stream, function_),
                      "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView& read = (Function::kReadsOutput ? call.outputs : call.inputs)[0];
    const TensorView &dy = call.output_grads[0], &dx = call.input_grads[0];
    return WithElement(dx.dtype, [&]<typename T>(T) {
      return Launched(LaunchFunctionGradient(As<const T>(read), As<const T>(dy), As<T>(dx),
                                             Accumulates(call, 0), dx.count(), stream, function_),
                      "backward");
    });
  }

 private:
  const Function function_;
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

#define CUDA_OPS_FACTORY(Name) \
  const OpFactory kMake##Name = kit::NewOp<ElementwiseOp<Name##Function>>;
CUDA_OPS_FUNCTIONS(CUDA_OPS_FACTORY)
#undef CUDA_OPS_FACTORY
const OpFactory kMakeAdd = kit::NewOp<AddOp>;

}  // namespace engine::cuda_ops
