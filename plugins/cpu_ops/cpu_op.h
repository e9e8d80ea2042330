// What the ops of this plugin share, and what makes them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "engine/op.h"
#include "kit/op.h"
#include "kit/op_library.h"
#include "kit/op_shapes.h"

namespace engine::cpu_ops {

// What an op is made with, besides its attributes.
struct OpContext {
  const char* name = "";  // of the op, static lifetime
  int32_t threads = 1;    // that one call may use
};

// Every op but its arithmetic. The number of OpenMP threads is a property of the calling thread,
// and several ranks may be threads of one process: each call sets its own before it computes.
class CpuOp : public OpBase {
 public:
  explicit CpuOp(const OpContext& context) noexcept : context_(context) {}

  Status Forward(const OpCall& call) noexcept final;
  Status Backward(const OpCall& call) noexcept final;

 protected:
  virtual Status DoForward(const OpCall& call) noexcept = 0;
  virtual Status DoBackward(const OpCall& call) noexcept = 0;

  const char* name() const noexcept { return context_.name; }
  int32_t threads() const noexcept { return context_.threads; }

  // A call of Infer, for what this op has in common with those of other devices.
  kit::Inference Inferring(Array<const TensorSpec> inputs, OpSignature* signature) const noexcept {
    return {name(), DType::kFloat32, inputs, signature};
  }

 private:
  const OpContext context_;
};

using kit::Accumulates;
using kit::WantsGradient;

// The gradient of a call without samples: zeros, unless it is added to or not wanted.
inline void ZeroGradient(const OpCall& call, int32_t input) noexcept {
  if (!WantsGradient(call, static_cast<size_t>(input)) || Accumulates(call, input)) return;
  const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
  std::memset(gradient.data, 0, gradient.size_bytes());
}

using OpFactory = kit::OpFactory<OpContext>;

// For an op whose input gradient equals its output gradient: copies or adds `source` to `target`,
// or does nothing when they are the same memory.
void PassGradient(const TensorView& source, const TensorView& target, bool sum) noexcept;
// The same for the gradient of `input`, unless nobody wants it.
void PassGradient(const OpCall& call, const TensorView& source, int32_t input) noexcept;

// y[i] = a[i] + b[i] for i in [begin, end), on the calling thread. y may be a.
void Add(const float* a, const float* b, float* y, int64_t begin, int64_t end);

ENGINE_KIT_EACH_OP(ENGINE_KIT_DECLARE_OP)

}  // namespace engine::cpu_ops
