// relu, gelu, tanh: y = f(x). add: y = a + b.
#include <cstring>
#include <span>

#include "cpu_op.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

// A kernel works on [begin, end). Sources and target may be the same memory.
using ForwardKernel = void (*)(const float* x, float* y, int64_t begin, int64_t end);
// `read` is what the function's derivative is computed from: x or y. `sum`: add to dx.
using BackwardKernel = void (*)(const float* read, const float* dy, float* dx, bool sum,
                                int64_t begin, int64_t end);

// Each backward kernel is one loop per case: a test of `sum` per element would not be hoisted.
#define CPU_OPS_BACKWARD_LOOP(expression)                                            \
  if (sum) {                                                                         \
    _Pragma("omp simd") for (int64_t i = begin; i < end; ++i) dx[i] += (expression); \
  } else {                                                                           \
    _Pragma("omp simd") for (int64_t i = begin; i < end; ++i) dx[i] = (expression);  \
  }

CPU_OPS_KERNEL void ReluForward(const float* x, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

CPU_OPS_KERNEL void ReluBackward(const float* y, const float* dy, float* dx, bool sum,
                                 int64_t begin,
                                 int64_t end){CPU_OPS_BACKWARD_LOOP(y[i] > 0.0f ? dy[i] : 0.0f)}

CPU_OPS_KERNEL void TanhForward(const float* x, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) y[i] = Tanh(x[i]);
}

CPU_OPS_KERNEL void TanhBackward(const float* y, const float* dy, float* dx, bool sum,
                                 int64_t begin, int64_t end) {
  CPU_OPS_BACKWARD_LOOP(dy[i] * (1.0f - y[i] * y[i]))
}

// GELU in GPT-2's approximation (Hendrycks and Gimpel, arXiv:1606.08415):
//   y = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3),  which is  x * sigmoid(2u).
constexpr float kGeluScale = 0.797884560802865f;
constexpr float kGeluCube = 0.044715f;

CPU_OPS_INLINE float GeluGate(float x) noexcept {
  return Sigmoid(2.0f * kGeluScale * x * (1.0f + kGeluCube * x * x));
}

CPU_OPS_INLINE float GeluDerivative(float x) noexcept {
  const float gate = GeluGate(x);
  const float slope = 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCube * x * x);
  return gate + x * slope * gate * (1.0f - gate);
}

CPU_OPS_KERNEL void GeluForward(const float* x, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) y[i] = x[i] * GeluGate(x[i]);
}

CPU_OPS_KERNEL void GeluBackward(const float* x, const float* dy, float* dx, bool sum,
                                 int64_t begin, int64_t end) {
  CPU_OPS_BACKWARD_LOOP(dy[i] * GeluDerivative(x[i]))
}
#undef CPU_OPS_BACKWARD_LOOP

// `kReadsOutput`: the derivative is computed from y, else from x; an op that reads its input is not
// done in place.
template <ForwardKernel kForward, BackwardKernel kBackward, bool kReadsOutput>
class ElementwiseOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferFunction(Inferring(inputs, signature), kReadsOutput);
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    const float* x = call.inputs[0].f32();
    float* y = call.outputs[0].f32();
    ForElements(call.outputs[0].count(),
                [&](int64_t begin, int64_t end) { kForward(x, y, begin, end); });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    if (!WantsGradient(call, 0)) return {};
    const float* read = (kReadsOutput ? call.outputs : call.inputs)[0].f32();
    const float* dy = call.output_grads[0].f32();
    float* dx = call.input_grads[0].f32();
    const bool sum = Accumulates(call, 0);
    ForElements(call.input_grads[0].count(),
                [&](int64_t begin, int64_t end) { kBackward(read, dy, dx, sum, begin, end); });
    return {};
  }
};

class AddOp final : public CpuOp {
 public:
  using CpuOp::CpuOp;

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    return kit::InferSum(Inferring(inputs, signature), true);
  }

 protected:
  Status DoForward(const OpCall& call) noexcept override {
    const float* a = call.inputs[0].f32();
    const float* b = call.inputs[1].f32();
    float* y = call.outputs[0].f32();
    ForElements(call.outputs[0].count(),
                [&](int64_t begin, int64_t end) { Add(a, b, y, begin, end); });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    for (const int32_t input : {0, 1}) PassGradient(call, call.output_grads[0], input);
    return {};
  }
};

}  // namespace

CPU_OPS_KERNEL void Add(const float* a, const float* b, float* y, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) y[i] = a[i] + b[i];
}

void PassGradient(const TensorView& source, const TensorView& target, bool sum) noexcept {
  if (source.data == target.data) return;
  const float* dy = source.f32();
  float* dx = target.f32();
  ForElements(target.count(), [&](int64_t begin, int64_t end) {
    if (sum) {
      Add(dx, dy, dx, begin, end);
    } else {
      std::memcpy(dx + begin, dy + begin, static_cast<size_t>(end - begin) * sizeof(float));
    }
  });
}

void PassGradient(const OpCall& call, const TensorView& source, int32_t input) noexcept {
  const auto i = static_cast<size_t>(input);
  if (WantsGradient(call, i)) PassGradient(source, call.input_grads[i], Accumulates(call, input));
}

const OpFactory kMakeRelu = kit::NewOp<ElementwiseOp<ReluForward, ReluBackward, true>>;
const OpFactory kMakeGelu = kit::NewOp<ElementwiseOp<GeluForward, GeluBackward, false>>;
const OpFactory kMakeTanh = kit::NewOp<ElementwiseOp<TanhForward, TanhBackward, true>>;
const OpFactory kMakeAdd = kit::NewOp<AddOp>;

}  // namespace engine::cpu_ops
