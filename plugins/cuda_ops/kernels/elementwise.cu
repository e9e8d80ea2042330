#include "kernels/elementwise.h"
#include "kernels/packs.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

template <typename Function>
struct ValueOf {
  __device__ float operator()(float x, float) const { return Function::Value(x); }
};
template <typename Function>
struct GradientOf {
  __device__ float operator()(float read, float dy) const { return Function::Gradient(read, dy); }
};

// target[i] becomes, or has added, Combine()(a[i], b[i]); b may be null.
template <int kPack, typename Combine, typename T>
__global__ void MapKernel(const T* a, const T* b, T* target, bool sum, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const Pack<T, kPack> left = LoadPack<kPack>(a + i * kPack);
  Pack<T, kPack> right = {};
  if (b != nullptr) right = LoadPack<kPack>(b + i * kPack);
  float results[kPack];
#pragma unroll
  for (int j = 0; j < kPack; ++j) {
    results[j] = Combine()(ToFloat(left.at[j]), ToFloat(right.at[j]));
  }
  PutPack<kPack>(target + i * kPack, results, sum);
}

template <typename Combine, typename T>
cudaError_t LaunchMap(const T* a, const T* b, T* target, bool sum, int64_t count,
                      cudaStream_t stream) noexcept {
  return WithPackSize<T>(count, {a, b, target}, [&](auto pack) {
    constexpr int kPack = decltype(pack)::value;
    return ForEach(count / kPack, MapKernel<kPack, Combine, T>, stream, a, b, target, sum);
  });
}

}  // namespace

template <typename Function, typename T>
cudaError_t LaunchFunction(const T* x, T* y, int64_t count, cudaStream_t stream) noexcept {
  return LaunchMap<ValueOf<Function>, T>(x, nullptr, y, false, count, stream);
}

template <typename Function, typename T>
cudaError_t LaunchFunctionGradient(const T* read, const T* dy, T* dx, bool sum, int64_t count,
                                   cudaStream_t stream) noexcept {
  return LaunchMap<GradientOf<Function>>(read, dy, dx, sum, count, stream);
}

template <typename T>
cudaError_t LaunchSum(const T* a, const T* b, T* y, int64_t count, cudaStream_t stream) noexcept {
  return LaunchMap<AddNumbers>(a, b, y, false, count, stream);
}

#define CUDA_OPS_INSTANTIATE_FUNCTION(Function, T)                                                \
  template cudaError_t LaunchFunction<Function, T>(const T*, T*, int64_t, cudaStream_t) noexcept; \
  template cudaError_t LaunchFunctionGradient<Function, T>(const T*, const T*, T*, bool, int64_t, \
                                                           cudaStream_t) noexcept;
#define CUDA_OPS_INSTANTIATE(T)                  \
  CUDA_OPS_INSTANTIATE_FUNCTION(ReluFunction, T) \
  CUDA_OPS_INSTANTIATE_FUNCTION(TanhFunction, T) \
  CUDA_OPS_INSTANTIATE_FUNCTION(GeluFunction, T) \
  template cudaError_t LaunchSum(const T*, const T*, T*, int64_t, cudaStream_t) noexcept;

CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)

}  // namespace engine::cuda_ops
