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

// Each is y = Value(x) with dx = Gradient(read, dy), where `read` is y or x.
struct ReluFunction {
  __host__ __device__ static float Value(float x) { return x < 0.0f ? 0.0f : x; }
  __host__ __device__ static float Gradient(float y, float dy) { return y > 0.0f ? dy : 0.0f; }
};

struct TanhFunction {
  __host__ __device__ static float Value(float x) { return tanhf(x); }
  __host__ __device__ static float Gradient(float y, float dy) { return dy * (1.0f - y * y); }
};

struct GeluFunction {
  __host__ __device__ static float Value(float x) { return Gelu(x); }
  __host__ __device__ static float Gradient(float x, float dy) { return dy * GeluDerivative(x); }
};

}  // namespace engine::cuda_ops
