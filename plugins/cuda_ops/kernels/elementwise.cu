#include <type_traits>

#include "kernels/elementwise.h"
#include "kernels/packs.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

template <typename Function>
struct ValueOf {
  Function function;
  __device__ float operator()(float x, float) const { return function.Value(x); }
};
template <typename Function>
struct GradientOf {
  Function function;
  __device__ float operator()(float read, float dy) const { return function.Gradient(read, dy); }
};

// target[i] becomes, or has added, combine(a[i], b[i]); b may be null.
template <int kPack, typename Combine, typename T, typename To>
__global__ void MapKernel(const T* a, const T* b, To* target, bool sum, Combine combine,
                          int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const Pack<T, kPack> left = LoadPack<kPack>(a + i * kPack);
  Pack<T, kPack> right = {};
  if (b != nullptr) right = LoadPack<kPack>(b + i * kPack);
  float results[kPack];
#pragma unroll
  for (int j = 0; j < kPack; ++j) results[j] = combine(ToFloat(left.at[j]), ToFloat(right.at[j]));
  PutPack<kPack>(target + i * kPack, results, sum);
}

template <typename Combine, typename T, typename To>
cudaError_t LaunchMap(const T* a, const T* b, To* target, bool sum, int64_t count,
                      cudaStream_t stream, const Combine& combine) noexcept {
  const auto start = [&](auto pack) {
    constexpr int kPack = decltype(pack)::value;
    return ForEach(count / kPack, MapKernel<kPack, Combine, T, To>, stream, a, b, target, sum,
                   combine);
  };
  if constexpr (std::is_same_v<T, To>) {
    return WithPackSize<T>(count, {a, b, target}, start);
  } else {
    return start(std::integral_constant<int, 1>{});
  }
}

}  // namespace

template <typename Function, typename T>
cudaError_t LaunchFunction(const T* x, T* y, int64_t count, cudaStream_t stream,
                           const Function& function) noexcept {
  return LaunchMap<ValueOf<Function>, T>(x, nullptr, y, false, count, stream, {function});
}

template <typename Function, typename T, typename To>
cudaError_t LaunchFunctionGradient(const T* read, const T* dy, To* dx, bool sum, int64_t count,
                                   cudaStream_t stream, const Function& function) noexcept {
  return LaunchMap<GradientOf<Function>>(read, dy, dx, sum, count, stream, {function});
}

template <typename T>
cudaError_t LaunchSum(const T* a, const T* b, T* y, int64_t count, cudaStream_t stream) noexcept {
  return LaunchMap(a, b, y, false, count, stream, AddNumbers());
}

#define CUDA_OPS_INSTANTIATE_GRADIENT(Name, T, To)                                    \
  template cudaError_t LaunchFunctionGradient(const T*, const T*, To*, bool, int64_t, \
                                              cudaStream_t, const Name##Function&) noexcept;
#define CUDA_OPS_INSTANTIATE_FUNCTION(Name, T)                             \
  template cudaError_t LaunchFunction(const T*, T*, int64_t, cudaStream_t, \
                                      const Name##Function&) noexcept;     \
  CUDA_OPS_INSTANTIATE_GRADIENT(Name, T, T)
#define CUDA_OPS_INSTANTIATE(Name, ...)      \
  CUDA_OPS_INSTANTIATE_FUNCTION(Name, float) \
  CUDA_OPS_INSTANTIATE_FUNCTION(Name, Bf16)  \
  CUDA_OPS_INSTANTIATE_GRADIENT(Name, Bf16, float)
CUDA_OPS_FUNCTIONS(CUDA_OPS_INSTANTIATE)

template cudaError_t LaunchSum(const float*, const float*, float*, int64_t, cudaStream_t) noexcept;
template cudaError_t LaunchSum(const Bf16*, const Bf16*, Bf16*, int64_t, cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
