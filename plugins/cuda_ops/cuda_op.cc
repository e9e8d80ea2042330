#include "cuda_op.h"

namespace engine::cuda_ops {

Status CudaOp::Forward(const OpCall& call) noexcept {
  ENGINE_RETURN_IF_ERROR(device().Use());
  return DoForward(call, Native(call.stream));
}

// Of an op with several outputs some gradients may be missing, but not all.
Status CudaOp::Backward(const OpCall& call) noexcept {
  const auto is_missing = [](const TensorView& gradient) {
    return gradient.data == nullptr && gradient.count() > 0;
  };
  bool all_missing = true;
  for (const TensorView& gradient : call.output_grads) all_missing &= is_missing(gradient);
  if (all_missing) return kit::NoOutputGradient(name());
  ENGINE_RETURN_IF_ERROR(device().Use());
  return DoBackward(call, Native(call.stream));
}

Status CudaOp::Launched(cudaError_t error, const char* kernel) const noexcept {
  if (error == cudaSuccess) return {};
  return ToStatus(error, kernel).WithContext("%s", name());
}

Status ZeroGradient(const OpCall& call, int32_t input, cudaStream_t stream) noexcept {
  if (!WantsGradient(call, static_cast<size_t>(input)) || Accumulates(call, input)) return {};
  const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
  if (gradient.count() == 0) return {};
  return ToStatus(cudaMemsetAsync(gradient.data, 0, gradient.size_bytes(), stream),
                  "zeroing a gradient");
}

}  // namespace engine::cuda_ops
