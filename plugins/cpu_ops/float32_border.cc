// The float32 tensors that the op sees lie behind its own workspace, in the order in which they are
// asked for. What is not bfloat16 (parameters that are no matrices, gradients of parameters, tokens,
// losses) it sees as it is.
#include "float32_border.h"

#include <array>
#include <new>
#include <span>
#include <string_view>
#include <utility>

namespace engine::cpu_ops {
namespace {

constexpr int64_t Aligned(int64_t bytes) noexcept {
  return (bytes + 63) / 64 * 64;
}

int64_t CopyBytes(const Shape& shape, DType dtype) noexcept {
  return dtype == DType::kBFloat16 ? Aligned(shape.Count() * static_cast<int64_t>(sizeof(float)))
                                   : 0;
}

// Tensors of a call, as the op sees them.
class Views {
 public:
  // Those of `mask` are read, others only written.
  Views(Array<const TensorView> views, uint32_t mask, std::byte** memory) noexcept : given_(views) {
    for (size_t i = 0; i < views.size(); ++i) {
      TensorView& seen = seen_[i] = views[i];
      if (!IsCopied(i)) continue;
      seen.data = *memory;
      seen.dtype = DType::kFloat32;
      *memory += CopyBytes(seen.shape, DType::kBFloat16);
      if ((mask >> i & 1) != 0) Convert(views[i], seen);
    }
  }

  Array<const TensorView> seen() const noexcept { return std::span(seen_).first(given_.size()); }

  void Round() const noexcept {
    for (size_t i = 0; i < given_.size(); ++i) {
      if (IsCopied(i)) Convert(seen_[i], given_[i]);
    }
  }

 private:
  bool IsCopied(size_t i) const noexcept {
    return given_[i].dtype == DType::kBFloat16 && given_[i].data != nullptr;
  }

  const Array<const TensorView> given_;
  std::array<TensorView, kMaxOpInputs> seen_;
};

class Float32Border final : public CpuOp {
 public:
  explicit Float32Border(std::unique_ptr<CpuOp> op) noexcept
      : CpuOp(op->context()), op_(std::move(op)) {}

  void* Query(std::string_view id) noexcept override { return op_->Query(id); }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(op_->Infer(inputs, signature));
    // A view is one in either type, and has nothing to compute.
    passes_ = op_->TakesBFloat16() || signature->output_is_view_of >= 0;
    if (op_->TakesBFloat16()) return {};
    signature->gradient_in_place = 0;  // what the op left there would be rounded
    reads_inputs_ = signature->backward_reads_inputs;
    reads_outputs_ = signature->backward_reads_outputs;
    own_bytes_ = Aligned(signature->workspace_bytes);
    int64_t copies = 0;
    for (const TensorSpec& input : inputs) copies += CopyBytes(input.shape, input.dtype);
    for (int32_t i = 0; i < signature->parameter_count; ++i) {
      const ParameterSpec& parameter = signature->parameters[i];
      copies += CopyBytes(parameter.shape, parameter.dtype);
    }
    for (int32_t i = 0; i < signature->output_count; ++i) {
      copies += CopyBytes(signature->outputs[i].shape, signature->outputs[i].dtype);
    }
    signature->workspace_bytes = own_bytes_ + 2 * copies;  // values and their gradients
    return {};
  }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    if (passes_) return op_->Forward(call);
    std::byte* memory = static_cast<std::byte*>(call.workspace) + own_bytes_;
    const Views inputs(call.inputs, ~0u, &memory), outputs(call.outputs, 0, &memory);
    OpCall seen = call;
    seen.inputs = inputs.seen();
    seen.outputs = outputs.seen();
    ENGINE_RETURN_IF_ERROR(op_->Forward(seen));
    outputs.Round();
    return {};
  }

  // A gradient that is added to is added to before it is rounded.
  Status DoBackward(const OpCall& call) noexcept override {
    if (op_->TakesBFloat16()) return op_->Backward(call);
    std::byte* memory = static_cast<std::byte*>(call.workspace) + own_bytes_;
    const Views inputs(call.inputs, reads_inputs_, &memory);
    const Views outputs(call.outputs, reads_outputs_, &memory);
    const Views dy(call.output_grads, ~0u, &memory);
    const Views dx(call.input_grads, call.accumulate, &memory);
    OpCall seen = call;
    seen.inputs = inputs.seen();
    seen.outputs = outputs.seen();
    seen.output_grads = dy.seen();
    seen.input_grads = dx.seen();
    ENGINE_RETURN_IF_ERROR(op_->Backward(seen));
    dx.Round();
    return {};
  }

  const std::unique_ptr<CpuOp> op_;
  bool passes_ = false;  // Forward gets what is given
  uint32_t reads_inputs_ = 0, reads_outputs_ = 0;
  int64_t own_bytes_ = 0;
};

}  // namespace

Op* WithFloat32Border(std::unique_ptr<CpuOp> op) noexcept {
  return new (std::nothrow) Float32Border(std::move(op));
}

}  // namespace engine::cpu_ops
