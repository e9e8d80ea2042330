// Functions of one input, y = f(x): a line for each value and one for each gradient.
#include <cmath>

#include "cpu_op.h"
#include "kit/array_op_shapes.h"
#include "parallel.h"
#include "simd.h"

namespace engine::cpu_ops {
namespace {

struct Constants {
  float a = 0, b = 0;
};

// What the derivative is computed from; an op that reads its input is not done in place.
enum class Reads { kX, kY, kNothing };

// A kernel works on [begin, end). Sources and target may be the same memory.
template <typename T>
struct Kernels {
  void (*forward)(const T* x, T* y, Constants, int64_t begin, int64_t end);
  // `read` is what the function reads; `sum`: add to dx.
  void (*backward)(const T* read, const T* dy, T* dx, bool sum, Constants, int64_t begin,
                   int64_t end);
};
// Of both types, from one expression: numbers are widened where they are read.
struct Function : Kernels<float>, Kernels<BFloat16> {
  Reads reads;
  const char* constants[2];  // attributes
};

template <const Function& kFunction>
class FunctionOp final : public CpuOp {
 public:
  FunctionOp(const OpContext& context, const Options& attributes) noexcept : CpuOp(context) {
    const auto read = [&](int i, float* constant) {
      const char* const attribute = kFunction.constants[i];
      if (attribute != nullptr) *constant = static_cast<float>(attributes.Float(attribute));
    };
    read(0, &constants_.a);
    read(1, &constants_.b);
  }

  Status Infer(Array<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    const kit::Inference inference = Inferring(inputs, signature);
    if (kFunction.reads == Reads::kNothing) return kit::InferScale(inference);
    return kit::InferFunction(inference, kFunction.reads == Reads::kY);
  }
  bool TakesBFloat16() const noexcept override { return true; }

 private:
  Status DoForward(const OpCall& call) noexcept override {
    WithElement(activation(), [&]<typename T>(T) {
      const T* x = As<const T>(call.inputs[0]);
      T* y = As<T>(call.outputs[0]);
      ForElements(call.outputs[0].count(), [&](int64_t begin, int64_t end) {
        kFunction.Kernels<T>::forward(x, y, constants_, begin, end);
      });
    });
    return {};
  }

  Status DoBackward(const OpCall& call) noexcept override {
    WithElement(activation(), [&]<typename T>(T) {
      const T* read = As<const T>((kFunction.reads == Reads::kX ? call.inputs : call.outputs)[0]);
      const T* dy = As<const T>(call.output_grads[0]);
      T* dx = As<T>(call.input_grads[0]);
      const bool sum = Accumulates(call, 0);
      ForElements(call.input_grads[0].count(), [&](int64_t begin, int64_t end) {
        kFunction.Kernels<T>::backward(read, dy, dx, sum, constants_, begin, end);
      });
    });
    return {};
  }

  Constants constants_;
};

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

// GELU itself: x times the share of the normal distribution below x.
CPU_OPS_INLINE float NormalShare(float x) noexcept {
  return 0.5f + 0.5f * Erf(x * 0.707106781186548f);
}

CPU_OPS_INLINE float NormalDensity(float x) noexcept {
  return 0.398942280401433f * Exp(-0.5f * x * x);
}

CPU_OPS_INLINE float Softplus(float x) noexcept {
  return (x > 0.0f ? x : 0.0f) + Log1Plus(Exp(x > 0.0f ? -x : x));
}

CPU_OPS_INLINE float SiluDerivative(float x) noexcept {
  const float gate = Sigmoid(x);
  return gate * (1.0f + x * (1.0f - gate));
}

// Mish (Misra, arXiv:1908.08681) is x tanh(softplus x), and tanh(ln(1 + e)) is n / (n + 2) with
// n = e^2 + 2e; beyond 20 that is 1 in any case.
CPU_OPS_INLINE float MishTerm(float x) noexcept {
  const float e = Exp(x > 20.0f ? 20.0f : x);
  return e * (e + 2.0f);
}

CPU_OPS_INLINE float MishDerivative(float x) noexcept {
  const float n = MishTerm(x), gate = n / (n + 2.0f);
  return gate + x * Sigmoid(x) * (4.0f * (n + 1.0f) / ((n + 2.0f) * (n + 2.0f)));
}

CPU_OPS_INLINE float WholeExp(float x) noexcept {
  const float half = Exp(0.5f * x);  // reaches infinity and the smallest numbers
  return half * half;
}

CPU_OPS_INLINE float Clamp(float x, float low, float high) noexcept {
  const float bounded = x < low ? low : x;
  return bounded > high ? high : bounded;
}

// `value` is an expression of x, `gradient` one of dy and `read`, which is x, y or a placeholder
// where neither is needed; both of the constants a and b, whose attributes follow. One loop per
// case: a test of `sum` per element would not be hoisted.
#define CPU_OPS_GRADIENT_LOOP(read, assign, gradient)         \
  _Pragma("omp simd") for (int64_t i = begin; i < end; ++i) { \
    [[maybe_unused]] const float read = reads[i];             \
    const float dy = dys[i];                                  \
    dxs[i] assign(gradient);                                  \
  }
#define CPU_OPS_FUNCTION(Name, Read, read, value, gradient, ...)                            \
  namespace {                                                                               \
  template <typename T>                                                                     \
  CPU_OPS_KERNEL void Name##Forward(const T* xs, T* ys, Constants constants, int64_t begin, \
                                    int64_t end) {                                          \
    [[maybe_unused]] const float a = constants.a, b = constants.b;                          \
    _Pragma("omp simd") for (int64_t i = begin; i < end; ++i) {                             \
      const float x = xs[i];                                                                \
      ys[i] = (value);                                                                      \
    }                                                                                       \
  }                                                                                         \
  template <typename T>                                                                     \
  CPU_OPS_KERNEL void Name##Backward(const T* reads, const T* dys, T* dxs, bool sum,        \
                                     Constants constants, int64_t begin, int64_t end) {     \
    [[maybe_unused]] const float a = constants.a, b = constants.b;                          \
    if (sum) {                                                                              \
      CPU_OPS_GRADIENT_LOOP(read, +=, gradient)                                             \
    } else {                                                                                \
      CPU_OPS_GRADIENT_LOOP(read, =, gradient)                                              \
    }                                                                                       \
  }                                                                                         \
  constexpr Function k##Name = {{Name##Forward<float>, Name##Backward<float>},              \
                                {Name##Forward<BFloat16>, Name##Backward<BFloat16>},        \
                                Reads::Read,                                                \
                                {__VA_ARGS__}};                                             \
  }                                                                                         \
  const OpFactory kMake##Name = kit::NewOp<FunctionOp<k##Name>>;

}  // namespace

// clang-format off: a table
CPU_OPS_FUNCTION(Relu, kY, y, x<0.0f ? 0.0f : x, y> 0.0f ? dy : 0.0f)
CPU_OPS_FUNCTION(Gelu, kX, x, x* GeluGate(x), dy* GeluDerivative(x))
CPU_OPS_FUNCTION(Tanh, kY, y, Tanh(x), dy*(1.0f - y * y))
CPU_OPS_FUNCTION(Scale, kNothing, none, a* x + b, dy* a, "factor", "offset")
CPU_OPS_FUNCTION(Sigmoid, kY, y, Sigmoid(x), dy*(y*(1.0f - y)))
CPU_OPS_FUNCTION(Silu, kX, x, x* Sigmoid(x), dy* SiluDerivative(x))
CPU_OPS_FUNCTION(HardSigmoid, kY, y, Clamp(x / 6.0f + 0.5f, 0.0f, 1.0f),
                 y > 0.0f && y < 1.0f ? dy / 6.0f : 0.0f)
CPU_OPS_FUNCTION(HardSwish, kX, x, x* Clamp(x / 6.0f + 0.5f, 0.0f, 1.0f),
                 x <= -3.0f ? 0.0f
                 : x < 3.0f ? dy * (x / 3.0f + 0.5f)
                            : dy)
CPU_OPS_FUNCTION(LeakyRelu, kY, y, x<0.0f ? a * x : x, y> 0.0f ? dy : a* dy, "slope")
CPU_OPS_FUNCTION(Elu, kY, y, x<0.0f ? a * ExpMinus1(x) : x, y> 0.0f ? dy : dy*(y + a), "alpha")
CPU_OPS_FUNCTION(GeluErf, kX, x, x* NormalShare(x), dy*(NormalShare(x) + x * NormalDensity(x)))
CPU_OPS_FUNCTION(Clip, kY, y, Clamp(x, a, b), y > a && y < b ? dy : 0.0f, "min", "max")
CPU_OPS_FUNCTION(Exp, kY, y, WholeExp(x), dy* y)
CPU_OPS_FUNCTION(Log, kX, x, Log(x), dy / x)
CPU_OPS_FUNCTION(Sqrt, kY, y, std::sqrt(x), dy * 0.5f / y)
CPU_OPS_FUNCTION(Reciprocal, kY, y, 1.0f / x, -dy* y* y)
CPU_OPS_FUNCTION(Abs, kX, x, x<0.0f ? -x : x + 0.0f, x> 0.0f ? dy : x < 0.0f ? -dy : 0.0f)
CPU_OPS_FUNCTION(Erf, kX, x, Erf(x), dy * 1.12837916709551f * Exp(-x * x))
CPU_OPS_FUNCTION(Softplus, kX, x, Softplus(x), dy* Sigmoid(x))
CPU_OPS_FUNCTION(Mish, kX, x, x*(MishTerm(x) / (MishTerm(x) + 2.0f)), dy* MishDerivative(x))
CPU_OPS_FUNCTION(Sin, kX, x, std::sin(x), dy* std::cos(x))
CPU_OPS_FUNCTION(Cos, kX, x, std::cos(x), -dy* std::sin(x))
// Of "pow": the exponents that models have, and the others.
CPU_OPS_FUNCTION(Square, kX, x, x* x, dy*(2.0f * x))
CPU_OPS_FUNCTION(Cube, kX, x, x* x* x, dy*(3.0f * x * x))
CPU_OPS_FUNCTION(InverseSqrt, kX, x, 1.0f / std::sqrt(x), -0.5f * dy / (x * std::sqrt(x)))
CPU_OPS_FUNCTION(ConstantPower, kX, x, std::pow(x, a), dy*(a* std::pow(x, a - 1.0f)), "exponent")
// clang-format on

const OpFactory kMakePow = [](const OpContext& context, const Options& attributes) noexcept {
  const double exponent = attributes.Float("exponent");
  const OpFactory make = exponent == 2      ? kMakeSquare
                         : exponent == 3    ? kMakeCube
                         : exponent == 0.5  ? kMakeSqrt
                         : exponent == -0.5 ? kMakeInverseSqrt
                         : exponent == -1   ? kMakeReciprocal
                                            : kMakeConstantPower;
  return make(context, attributes);
};

}  // namespace engine::cpu_ops
