// What the ops of this plugin share: the base class, and the checks of Infer.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "engine/op.h"

namespace engine::cpu_ops {

// What an op is made with, besides its attributes.
struct OpContext {
  const char* name = "";  // of the op, static lifetime
  int32_t threads = 1;    // that one call may use
};

// Every op but its arithmetic. The number of OpenMP threads is a property of the calling thread,
// and several ranks may be threads of one process: each call sets its own before it computes.
class CpuOp : public Op {
 public:
  explicit CpuOp(const OpContext& context) noexcept : context_(context) {}

  Status Forward(const OpCall& call) noexcept final;
  Status Backward(const OpCall& call) noexcept final;

 protected:
  virtual Status DoForward(const OpCall& call) noexcept = 0;
  virtual Status DoBackward(const OpCall& call) noexcept = 0;

  const char* name() const noexcept { return context_.name; }
  int32_t threads() const noexcept { return context_.threads; }

  // kConfig unless there are `count` inputs.
  Status CheckInputCount(std::span<const TensorSpec> inputs, size_t count) const noexcept;
  // kConfig: what input `index` is, and `need`, what it has to be.
  Status InputError(std::span<const TensorSpec> inputs, size_t index,
                    const char* need) const noexcept;

 private:
  const OpContext context_;
};

// Whether Backward adds to the gradient of `input` instead of writing it.
inline bool Accumulates(const OpCall& call, int32_t input) noexcept {
  return (call.accumulate >> input & 1u) != 0;
}

inline bool WantsGradient(const OpCall& call, size_t input) noexcept {
  return input < call.input_grads.size() && call.input_grads[input].data != nullptr;
}

// The gradient of a call without samples: zeros, unless it is added to or not wanted.
inline void ZeroGradient(const OpCall& call, int32_t input) noexcept {
  if (!WantsGradient(call, static_cast<size_t>(input)) || Accumulates(call, input)) return;
  const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
  std::memset(gradient.data, 0, gradient.size_bytes());
}

inline ParameterSpec& AddParameter(OpSignature* signature, const Shape& shape) noexcept {
  ParameterSpec& parameter = signature->parameters[signature->parameter_count++];
  parameter.shape = shape;
  return parameter;
}

inline void AddOutput(OpSignature* signature, const Shape& shape, uint32_t batched) noexcept {
  signature->outputs[signature->output_count++] = {shape, DType::kFloat32, batched};
}

}  // namespace engine::cpu_ops
