// The functions of one number that ops are made of, for kernels and for tests on the host.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace engine::cuda_ops {

constexpr float kLog2E = 1.4426950408889634f;

// 2^x, on a GPU in one instruction.
__host__ __device__ inline float PowerOf2(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// exp(x), on a GPU in two instructions: wrong by at most about 1e-7 (2 + |x|) of itself.
__host__ __device__ inline float QuickExp(float x) {
#ifdef __CUDA_ARCH__
  return PowerOf2(x * kLog2E);
#else
  return expf(x);
#endif
}

__host__ __device__ inline float Sigmoid(float x) {
#ifdef __CUDA_ARCH__
  return __fdividef(1.0f, 1.0f + QuickExp(-x));  // 0 where the exponential is huge or infinite
#else
  return 1.0f / (1.0f + expf(-x));
#endif
}

// GELU in GPT-2's approximation (Hendrycks and Gimpel, arXiv:1606.08415):
//   y = x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3),  which is  x * sigmoid(2u).
constexpr float kGeluScale = 0.797884560802865f;
constexpr float kGeluCube = 0.044715f;

__host__ __device__ inline float GeluGate(float x) {
  return Sigmoid(2.0f * kGeluScale * x * (1.0f + kGeluCube * x * x));
}

__host__ __device__ inline float Gelu(float x) {
  return x * GeluGate(x);
}

__host__ __device__ inline float GeluDerivative(float x) {
  const float gate = GeluGate(x);
  const float slope = 2.0f * kGeluScale * (1.0f + 3.0f * kGeluCube * x * x);
  return gate + x * slope * gate * (1.0f - gate);
}

// sin(x) and cos(x) = sin(x + pi/2) of any x, by way of its turns: the functions of the device keep
// local memory for large x.
__host__ __device__ inline float SineOf(float x, float turns) {
#ifdef __CUDA_ARCH__
  const double at = static_cast<double>(x) * 0.15915494309189535 + turns;
  return sinpif(2.0f * static_cast<float>(at - rint(at)));
#else
  return static_cast<float>(sin(static_cast<double>(x) + 6.283185307179586 * turns));
#endif
}

__host__ __device__ inline float Clamped(float x, float least, float most) {
  return x < least ? least : (x > most ? most : x);
}
__host__ __device__ inline float HardSigmoid(float x) {
  return Clamped(x / 6.0f + 0.5f, 0.0f, 1.0f);
}
__host__ __device__ inline float HardSwishDerivative(float x) {
  return x < -3.0f ? 0.0f : (x > 3.0f ? 1.0f : x / 3.0f + 0.5f);
}

// The normal distribution's probability to be below x.
__host__ __device__ inline float NormalBelow(float x) {
  return 0.5f * (1.0f + erff(0.70710678118654752f * x));
}

__host__ __device__ inline float NormalDensity(float x) {
  return 0.39894228040143268f * expf(-0.5f * x * x);
}

__host__ __device__ inline float Softplus(float x) {
  return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}

// tanh(softplus(x)) (Misra, arXiv:1908.08681), with w = exp(x): (w^2 + 2w) / (w^2 + 2w + 2).
__host__ __device__ inline float MishGate(float x) {
  const float w = expf(Clamped(x, -100.0f, 20.0f)), n = w * (w + 2.0f);
  return n / (n + 2.0f);
}
__host__ __device__ inline float MishDerivative(float x) {
  const float gate = MishGate(x);
  return gate + x * Sigmoid(x) * (1.0f - gate * gate);
}

// Functions y = value of x, with dx = gradient of `read`, which is y, x or none of them, and dy. The
// numbers p and q are those attributes of the op.
// clang-format off
//        name, read, p, q, value, gradient
#define CUDA_OPS_FUNCTIONS(APPLY)                                                             \
  APPLY(Relu, y, "", "", x < 0.0f ? 0.0f : x, y > 0.0f ? dy : 0.0f)                           \
  APPLY(Tanh, y, "", "", tanhf(x), dy * (1.0f - y * y))                                       \
  APPLY(Gelu, x, "", "", Gelu(x), dy * GeluDerivative(x))                                     \
  APPLY(Sigmoid, y, "", "", Sigmoid(x), dy * y * (1.0f - y))                                  \
  APPLY(Silu, x, "", "", x * Sigmoid(x), dy * Sigmoid(x) * (1.0f + x * (1.0f - Sigmoid(x))))  \
  APPLY(HardSigmoid, x, "", "", HardSigmoid(x), x > -3.0f && x < 3.0f ? dy / 6.0f : 0.0f)     \
  APPLY(HardSwish, x, "", "", x * HardSigmoid(x), dy * HardSwishDerivative(x))                \
  APPLY(LeakyRelu, x, "slope", "", x > 0.0f ? x : p * x, x > 0.0f ? dy : p * dy)              \
  APPLY(Elu, x, "alpha", "", x > 0.0f ? x : p * expm1f(x), x > 0.0f ? dy : dy * p * expf(x))  \
  APPLY(GeluErf, x, "", "", x * NormalBelow(x), dy * (NormalBelow(x) + x * NormalDensity(x))) \
  APPLY(Clip, x, "min", "max", Clamped(x, p, q), x > p && x < q ? dy : 0.0f)                  \
  APPLY(Exp, y, "", "", expf(x), dy * y)                                                      \
  APPLY(Log, x, "", "", logf(x), dy / x)                                                      \
  APPLY(Sqrt, y, "", "", sqrtf(x), dy / (2.0f * y))                                           \
  APPLY(Reciprocal, y, "", "", 1.0f / x, -dy * y * y)                                         \
  APPLY(Abs, x, "", "", fabsf(x), x > 0.0f ? dy : (x < 0.0f ? -dy : 0.0f))                    \
  APPLY(Erf, x, "", "", erff(x), dy * 1.1283791670955126f * expf(-x * x))                     \
  APPLY(Softplus, x, "", "", Softplus(x), dy * Sigmoid(x))                                    \
  APPLY(Mish, x, "", "", x * MishGate(x), dy * MishDerivative(x))                             \
  APPLY(Sin, x, "", "", SineOf(x, 0.0f), dy * SineOf(x, 0.25f))                               \
  APPLY(Cos, x, "", "", SineOf(x, 0.25f), -dy * SineOf(x, 0.0f))                              \
  APPLY(Pow, x, "exponent", "", powf(x, p), p == 0.0f ? 0.0f : dy * p * powf(x, p - 1.0f))    \
  APPLY(Scale, none, "factor", "offset", p * x + q, p * dy)
// clang-format on

#define CUDA_OPS_FUNCTION(Name, read, p_name, q_name, value, gradient)                \
  struct Name##Function {                                                             \
    static constexpr bool kReadsOutput = #read[0] == 'y';                             \
    float p = 0, q = 0;                                                               \
    __host__ __device__ float Value(float x) const { return value; }                  \
    __host__ __device__ float Gradient([[maybe_unused]] float read, float dy) const { \
      return gradient;                                                                \
    }                                                                                 \
  };
CUDA_OPS_FUNCTIONS(CUDA_OPS_FUNCTION)
#undef CUDA_OPS_FUNCTION

}  // namespace engine::cuda_ops
