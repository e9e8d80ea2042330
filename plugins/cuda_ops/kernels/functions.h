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

// Each is y = Value(x) with dx = Gradient(read, dy), where `read` is y or x: those with
// kReadsOutput read y.
struct ReluFunction {
  static constexpr bool kReadsOutput = true;
  __host__ __device__ static float Value(float x) { return x < 0.0f ? 0.0f : x; }
  __host__ __device__ static float Gradient(float y, float dy) { return y > 0.0f ? dy : 0.0f; }
};

struct TanhFunction {
  static constexpr bool kReadsOutput = true;
  __host__ __device__ static float Value(float x) { return tanhf(x); }
  __host__ __device__ static float Gradient(float y, float dy) { return dy * (1.0f - y * y); }
};

struct GeluFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return Gelu(x); }
  __host__ __device__ static float Gradient(float x, float dy) { return dy * GeluDerivative(x); }
};

struct SigmoidFunction {
  static constexpr bool kReadsOutput = true;
  __host__ __device__ static float Value(float x) { return Sigmoid(x); }
  __host__ __device__ static float Gradient(float y, float dy) { return dy * y * (1.0f - y); }
};

struct SiluFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return x * Sigmoid(x); }
  __host__ __device__ static float Gradient(float x, float dy) {
    const float gate = Sigmoid(x);
    return dy * gate * (1.0f + x * (1.0f - gate));
  }
};

struct HardSigmoidFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) {
    const float y = x / 6.0f + 0.5f;
    return y < 0.0f ? 0.0f : (y > 1.0f ? 1.0f : y);
  }
  __host__ __device__ static float Gradient(float x, float dy) {
    return x > -3.0f && x < 3.0f ? dy / 6.0f : 0.0f;
  }
};

struct HardSwishFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return x * HardSigmoidFunction::Value(x); }
  __host__ __device__ static float Gradient(float x, float dy) {
    return x < -3.0f ? 0.0f : (x > 3.0f ? dy : dy * (x / 3.0f + 0.5f));
  }
};

struct LeakyReluFunction {
  static constexpr bool kReadsOutput = false;
  float slope = 0;
  __host__ __device__ float Value(float x) const { return x > 0.0f ? x : slope * x; }
  __host__ __device__ float Gradient(float x, float dy) const { return x > 0.0f ? dy : slope * dy; }
};

struct EluFunction {
  static constexpr bool kReadsOutput = false;
  float alpha = 1;
  __host__ __device__ float Value(float x) const { return x > 0.0f ? x : alpha * expm1f(x); }
  __host__ __device__ float Gradient(float x, float dy) const {
    return x > 0.0f ? dy : dy * alpha * expf(x);
  }
};

// x times the normal distribution's probability to be below x.
struct GeluErfFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Below(float x) {
    return 0.5f * (1.0f + erff(0.70710678118654752f * x));
  }
  __host__ __device__ static float Value(float x) { return x * Below(x); }
  __host__ __device__ static float Gradient(float x, float dy) {
    return dy * (Below(x) + x * 0.39894228040143268f * expf(-0.5f * x * x));
  }
};

struct ClipFunction {
  static constexpr bool kReadsOutput = false;
  float least = 0, most = 0;
  __host__ __device__ float Value(float x) const {
    return x < least ? least : (x > most ? most : x);
  }
  __host__ __device__ float Gradient(float x, float dy) const {
    return x > least && x < most ? dy : 0.0f;
  }
};

struct ExpFunction {
  static constexpr bool kReadsOutput = true;
  __host__ __device__ static float Value(float x) { return expf(x); }
  __host__ __device__ static float Gradient(float y, float dy) { return dy * y; }
};

struct LogFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return logf(x); }
  __host__ __device__ static float Gradient(float x, float dy) { return dy / x; }
};

struct SqrtFunction {
  static constexpr bool kReadsOutput = true;
  __host__ __device__ static float Value(float x) { return sqrtf(x); }
  __host__ __device__ static float Gradient(float y, float dy) { return dy / (2.0f * y); }
};

struct ReciprocalFunction {
  static constexpr bool kReadsOutput = true;
  __host__ __device__ static float Value(float x) { return 1.0f / x; }
  __host__ __device__ static float Gradient(float y, float dy) { return -dy * y * y; }
};

struct AbsFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return fabsf(x); }
  __host__ __device__ static float Gradient(float x, float dy) {
    return x > 0.0f ? dy : (x < 0.0f ? -dy : 0.0f);
  }
};

struct ErfFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return erff(x); }
  __host__ __device__ static float Gradient(float x, float dy) {
    return dy * 1.1283791670955126f * expf(-x * x);
  }
};

struct SoftplusFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) {
    return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
  }
  __host__ __device__ static float Gradient(float x, float dy) { return dy * Sigmoid(x); }
};

// x tanh(softplus(x)) (Misra, arXiv:1908.08681); with w = exp(x) the tangent is
// (w^2 + 2w) / (w^2 + 2w + 2).
struct MishFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Gate(float x) {
    const float w = expf(x < 20.0f ? x : 20.0f), n = w * (w + 2.0f);
    return n / (n + 2.0f);
  }
  __host__ __device__ static float Value(float x) { return x * Gate(x); }
  __host__ __device__ static float Gradient(float x, float dy) {
    const float gate = Gate(x);
    return dy * (gate + x * Sigmoid(x) * (1.0f - gate * gate));
  }
};

struct SinFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return SineOf(x, 0.0f); }
  __host__ __device__ static float Gradient(float x, float dy) { return dy * SineOf(x, 0.25f); }
};

struct CosFunction {
  static constexpr bool kReadsOutput = false;
  __host__ __device__ static float Value(float x) { return SineOf(x, 0.25f); }
  __host__ __device__ static float Gradient(float x, float dy) { return -dy * SineOf(x, 0.0f); }
};

struct PowFunction {
  static constexpr bool kReadsOutput = false;
  float exponent = 1;
  __host__ __device__ float Value(float x) const { return powf(x, exponent); }
  __host__ __device__ float Gradient(float x, float dy) const {
    return exponent == 0.0f ? 0.0f : dy * exponent * powf(x, exponent - 1.0f);
  }
};

struct ScaleFunction {
  static constexpr bool kReadsOutput = false;  // nor x
  float factor = 1, offset = 0;
  __host__ __device__ float Value(float x) const { return factor * x + offset; }
  __host__ __device__ float Gradient(float, float dy) const { return factor * dy; }
};

// Those above.
#define CUDA_OPS_FUNCTIONS(APPLY)                                                              \
  APPLY(Relu)                                                                                  \
  APPLY(Tanh) APPLY(Gelu) APPLY(Sigmoid) APPLY(Silu) APPLY(HardSigmoid) APPLY(HardSwish)       \
      APPLY(LeakyRelu) APPLY(Elu) APPLY(GeluErf) APPLY(Clip) APPLY(Exp) APPLY(Log) APPLY(Sqrt) \
          APPLY(Reciprocal) APPLY(Abs) APPLY(Erf) APPLY(Softplus) APPLY(Mish) APPLY(Sin)       \
              APPLY(Cos) APPLY(Pow) APPLY(Scale)

}  // namespace engine::cuda_ops
