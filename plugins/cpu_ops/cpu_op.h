// What the ops of this plugin share, and what makes them.
#pragma once

#include <cstdint>
#include <cstring>

#include "engine/op.h"
#include "kit/op.h"
#include "kit/op_library.h"
#include "kit/op_shapes.h"
#include "simd.h"

namespace engine::cpu_ops {

// What an op is made with, besides its attributes.
struct OpContext {
  const char* name = "";               // of the op, static lifetime
  int32_t threads = 1;                 // that one call may use
  DType activation = DType::kFloat32;  // or kBFloat16
};

// Every op but its arithmetic. The number of OpenMP threads is a property of the calling thread,
// and several ranks may be threads of one process: each call sets its own before it computes.
class CpuOp : public OpBase {
 public:
  explicit CpuOp(const OpContext& context) noexcept : context_(context) {}

  Status Forward(const OpCall& call) noexcept final;
  Status Backward(const OpCall& call) noexcept final;

  // Whether the calls that Infer was told of may have activations in bfloat16. Others get them in
  // float32 (float32_border.h).
  virtual bool TakesBFloat16() const noexcept { return false; }
  const OpContext& context() const noexcept { return context_; }

 protected:
  virtual Status DoForward(const OpCall& call) noexcept = 0;
  // Somebody wants a gradient: of an op with one input, or whose others have none, the first.
  virtual Status DoBackward(const OpCall& call) noexcept = 0;

  const char* name() const noexcept { return context_.name; }
  int32_t threads() const noexcept { return context_.threads; }
  DType activation() const noexcept { return context_.activation; }

  // A call of Infer, for what this op has in common with those of other devices.
  kit::Inference Inferring(Array<const TensorSpec> inputs, OpSignature* signature) const noexcept {
    return {name(), context_.activation, inputs, signature};
  }

 private:
  const OpContext context_;
};

// The data of a tensor whose element is T.
template <typename T>
T* As(const TensorView& view) noexcept {
  return static_cast<T*>(view.data);
}

// float or BFloat16: calls function(T{}) with it.
template <typename Function>
auto WithElement(DType dtype, const Function& function) noexcept {
  return dtype == DType::kBFloat16 ? function(BFloat16{}) : function(float{});
}

// target[i] = source[i] between float32 and bfloat16, in threads.
void Convert(const TensorView& source, const TensorView& target) noexcept;

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
// which may be float32 where the other is not, or does nothing when they are the same memory.
void PassGradient(const TensorView& source, const TensorView& target, bool sum) noexcept;
// The same for the gradient of `input`, unless nobody wants it.
void PassGradient(const OpCall& call, const TensorView& source, int32_t input) noexcept;

// y[i] = a[i] + b[i] for i in [begin, end), on the calling thread. y may be a. All are
// floats or all BFloat16, or b alone is that.
template <typename A, typename B>
void Add(const A* a, const B* b, A* y, int64_t begin, int64_t end);

ENGINE_KIT_EACH_OP(ENGINE_KIT_DECLARE_OP)

}  // namespace engine::cpu_ops
