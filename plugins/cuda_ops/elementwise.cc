// y = f(x) for the functions of kernels/functions.h.
#include "kernels/elementwise.h"

#include <type_traits>

#include "cuda_op.h"
#include "kit/array_op_shapes.h"

namespace engine::cuda_ops {
namespace {

// An op that reads its input when it goes back is not done in place. `kNumbers`: the attributes that
// are p and q of its function.
template <typename Function, const char* const* kNumbers>
class ElementwiseOp final : public CudaOp {
 public:
  ElementwiseOp(const OpContext& context, const Options& attributes) noexcept
      : CudaOp(context),
        function_{Number(attributes, kNumbers[0]), Number(attributes, kNumbers[1])} {}

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference op = Inferring(inputs, signature);
    return kReadsNothing ? kit::InferScale(op) : kit::InferFunction(op, Function::kReadsOutput);
  }

 private:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    const TensorView &x = call.inputs[0], &y = call.outputs[0];
    return WithElement(y.dtype, [&]<typename T>(T) {
      return Launched(LaunchFunction(As<const T>(x), As<T>(y), y.count(), stream, function_),
                      "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const TensorView &dy = call.output_grads[0], &dx = call.input_grads[0];
    const TensorView& read =
        kReadsNothing ? dy : (Function::kReadsOutput ? call.outputs : call.inputs)[0];
    // The gradient of what a model calls a parameter is float32.
    const auto launch = [&]<typename T, typename To>(T, To) {
      return Launched(LaunchFunctionGradient(As<const T>(read), As<const T>(dy), As<To>(dx),
                                             Accumulates(call, 0), dx.count(), stream, function_),
                      "backward");
    };
    return WithElement(dy.dtype, [&]<typename T>(T) {
      return dx.dtype == dy.dtype ? launch(T{}, T{}) : launch(T{}, float{});
    });
  }

  static constexpr bool kReadsNothing = std::is_same_v<Function, ScaleFunction>;

  static float Number(const Options& attributes, const char* name) noexcept {
    return name[0] == '\0' ? 0.0f : static_cast<float>(attributes.Float(name));
  }

  const Function function_;
};

}  // namespace

#define CUDA_OPS_FACTORY(Name, read, p, q, value, gradient) \
  constexpr const char* k##Name##Numbers[] = {p, q};        \
  const OpFactory kMake##Name = kit::NewOp<ElementwiseOp<Name##Function, k##Name##Numbers>>;
CUDA_OPS_FUNCTIONS(CUDA_OPS_FACTORY)
#undef CUDA_OPS_FACTORY

}  // namespace engine::cuda_ops
