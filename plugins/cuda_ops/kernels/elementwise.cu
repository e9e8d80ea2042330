#include "kernels/element.h"
#include "kernels/elementwise.h"
#include "kernels/launch.h"

namespace engine::cuda_ops {
namespace {

constexpr int kThreads = 256;

template <typename Function>
struct ValueOf {
  __device__ float operator()(float x, float, float) const { return Function::Value(x); }
};
template <typename Function>
struct GradientOf {
  bool sum;
  __device__ float operator()(float read, float dy, float before) const {
    const float gradient = Function::Gradient(read, dy);
    return sum ? before + gradient : gradient;
  }
};
struct SumOf {
  __device__ float operator()(float a, float b, float) const { return a + b; }
};

// target[i] = combine(a[i], b[i], target[i]); b may be null, and `target` is read when `reads`. The
// pointers are aligned to kPack elements, which divides `count`.
template <typename T, int kPack, typename Combine>
__global__ void MapKernel(const T* a, const T* b, T* target, bool reads, int64_t count,
                          Combine combine) {
  using Packed = Pack<T, kPack>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count / kPack;
       i += stride) {
    const Packed left = reinterpret_cast<const Packed*>(a)[i];
    Packed right = {}, before = {};
    if (b != nullptr) right = reinterpret_cast<const Packed*>(b)[i];
    if (reads) before = reinterpret_cast<const Packed*>(target)[i];
    Packed result;
    for (int j = 0; j < kPack; ++j) {
      result.at[j] =
          FromFloat<T>(combine(ToFloat(left.at[j]), ToFloat(right.at[j]), ToFloat(before.at[j])));
    }
    reinterpret_cast<Packed*>(target)[i] = result;
  }
}

template <typename T, typename Combine>
cudaError_t LaunchMap(const T* a, const T* b, T* target, bool reads, int64_t count, Combine combine,
                      cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(count, {a, b, target});
  const dim3 grid(StridingBlocksFor(count, (packed ? kPackSize<T> : 1) * kThreads));
  const auto kernel = packed ? MapKernel<T, kPackSize<T>, Combine> : MapKernel<T, 1, Combine>;
  return Launch(kernel, grid, dim3(kThreads), 0, stream, a, b, target, reads, count, combine);
}

}  // namespace

template <typename Function, typename T>
cudaError_t LaunchFunction(const T* x, T* y, int64_t count, cudaStream_t stream) noexcept {
  return LaunchMap(x, static_cast<const T*>(nullptr), y, false, count, ValueOf<Function>{}, stream);
}

template <typename Function, typename T>
cudaError_t LaunchFunctionGradient(const T* read, const T* dy, T* dx, bool sum, int64_t count,
                                   cudaStream_t stream) noexcept {
  return LaunchMap(read, dy, dx, sum, count, GradientOf<Function>{sum}, stream);
}

template <typename T>
cudaError_t LaunchSum(const T* a, const T* b, T* y, int64_t count, cudaStream_t stream) noexcept {
  return LaunchMap(a, b, y, false, count, SumOf{}, stream);
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
