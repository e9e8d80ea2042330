// Rows whose elements are neighbours have a warp each, or a block where they are long; other rows,
// whose neighbours are those of other rows, a thread.
#include <type_traits>

#include "kernels/packs.h"
#include "kernels/reduce.h"
#include "kernels/softmax.h"

namespace engine::cuda_ops {
namespace {

constexpr int64_t kLongRow = 2048;

// The part of a row that one of kLanes threads has.
template <int kLanes>
struct RowOf {
  int64_t row, begin, step;
  int lane;

  __device__ explicit RowOf(const SoftmaxShape& shape) {
    const int64_t thread = ThreadIndex();
    row = thread / kLanes;
    lane = static_cast<int>(thread % kLanes);
    step = shape.inner;
    begin = row / shape.inner * (shape.length * shape.inner) + row % shape.inner;
  }
  template <typename Combine>
  __device__ float All(float own, Combine combine, float neutral) const {
    if constexpr (kLanes == 1) {
      return own;
    } else if constexpr (kLanes == kWarp) {
      return WarpReduce(own, combine);
    } else {
      __shared__ float scratch[kWarp];
      return BlockReduce(own, combine, neutral, scratch);
    }
  }
  // Calls body(position in the row, index in the tensor).
  template <typename Body>
  __device__ void For(int64_t length, const Body& body) const {
    for (int64_t i = lane; i < length; i += kLanes) body(i, begin + i * step);
  }
};

// What is added to the scores of a row.
struct RowMask {
  const ScoreMask& mask;
  int64_t query, first;

  __device__ RowMask(const ScoreMask& of, int64_t row) : mask(of) {
    query = row % of.queries;
    const int64_t head = row / of.queries % of.heads, sample = row / of.queries / of.heads;
    const int64_t* const strides = of.mask.strides;
    first = sample * strides[0] + head * strides[1] + query * strides[2];
  }
  __device__ float Apply(float score, int64_t key) const {
    if (mask.causal && key > query) return -INFINITY;
    if (mask.mask.data == nullptr) return score;
    const int64_t at = first + key * mask.mask.strides[3];
    return score + (mask.mask.bf16 ? ToFloat(static_cast<const Bf16*>(mask.mask.data)[at])
                                   : static_cast<const float*>(mask.mask.data)[at]);
  }
};

template <int kLanes, typename From, typename T>
__global__ void SoftmaxKernel(const SoftmaxShape shape, const ScoreMask mask, const From* x, T* y) {
  const RowOf<kLanes> own(shape);
  if (own.row >= shape.rows) return;  // all lanes of the row
  const RowMask masked(mask, own.row);
  const auto score = [&](int64_t i, int64_t at) { return masked.Apply(ToFloat(x[at]), i); };
  float largest = -INFINITY;
  own.For(shape.length, [&](int64_t i, int64_t at) {
    const float value = score(i, at);
    largest = value > largest ? value : largest;
  });
  largest = own.All(largest, MaxFloats(), -INFINITY);
  float sum = 0;
  own.For(shape.length, [&](int64_t i, int64_t at) { sum += expf(score(i, at) - largest); });
  sum = own.All(sum, AddNumbers(), 0.0f);
  const float log_sum = logf(sum), factor = 1.0f / sum;
  own.For(shape.length, [&](int64_t i, int64_t at) {
    const float value = score(i, at) - largest;
    y[at] = FromFloat<T>(shape.log ? value - log_sum : expf(value) * factor);
  });
}

template <int kLanes, typename From, typename T, typename To>
__global__ void SoftmaxGradientKernel(const SoftmaxShape shape, const T* y, const From* dy, To* dx,
                                      bool sum) {
  const RowOf<kLanes> own(shape);
  if (own.row >= shape.rows) return;
  float total = 0;
  own.For(shape.length, [&](int64_t, int64_t at) {
    total += ToFloat(dy[at]) * (shape.log ? 1.0f : ToFloat(y[at]));
  });
  total = own.All(total, AddNumbers(), 0.0f);
  own.For(shape.length, [&](int64_t, int64_t at) {
    const float gradient = ToFloat(dy[at]), value = ToFloat(y[at]);
    const float result = shape.log ? gradient - expf(value) * total : value * (gradient - total);
    dx[at] = FromFloat<To>(sum ? ToFloat(dx[at]) + result : result);
  });
}

// Calls function(number of threads of a row as an integral_constant).
template <typename Function>
cudaError_t WithLanes(const SoftmaxShape& shape, const Function& function) noexcept {
  if (shape.rows == 0) return cudaSuccess;
  if (shape.inner > 1) return function(std::integral_constant<int, 1>{});
  if (shape.length <= kLongRow) return function(std::integral_constant<int, kWarp>{});
  return function(std::integral_constant<int, kThreads>{});
}

dim3 BlocksOf(const SoftmaxShape& shape, int lanes) {
  return dim3(BlocksFor(shape.rows, kThreads / lanes));
}

}  // namespace

template <typename From, typename T>
cudaError_t LaunchSoftmax(const SoftmaxShape& shape, const ScoreMask& mask, const From* x, T* y,
                          cudaStream_t stream) noexcept {
  return WithLanes(shape, [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    return Launch(SoftmaxKernel<kLanes, From, T>, BlocksOf(shape, kLanes), dim3(kThreads), 0,
                  stream, shape, mask, x, y);
  });
}

template <typename From, typename T, typename To>
cudaError_t LaunchSoftmaxGradient(const SoftmaxShape& shape, const T* y, const From* dy, To* dx,
                                  bool sum, cudaStream_t stream) noexcept {
  return WithLanes(shape, [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    return Launch(SoftmaxGradientKernel<kLanes, From, T, To>, BlocksOf(shape, kLanes),
                  dim3(kThreads), 0, stream, shape, y, dy, dx, sum);
  });
}

#define CUDA_OPS_INSTANTIATE(From, T)                                                        \
  template cudaError_t LaunchSoftmax(const SoftmaxShape&, const ScoreMask&, const From*, T*, \
                                     cudaStream_t) noexcept;
#define CUDA_OPS_INSTANTIATE_GRADIENT(From, T, To)                                            \
  template cudaError_t LaunchSoftmaxGradient(const SoftmaxShape&, const T*, const From*, To*, \
                                             bool, cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float, float)
CUDA_OPS_INSTANTIATE(Bf16, Bf16)
CUDA_OPS_INSTANTIATE(float, Bf16)
CUDA_OPS_INSTANTIATE_GRADIENT(float, float, float)
CUDA_OPS_INSTANTIATE_GRADIENT(Bf16, Bf16, Bf16)
CUDA_OPS_INSTANTIATE_GRADIENT(Bf16, Bf16, float)
CUDA_OPS_INSTANTIATE_GRADIENT(float, Bf16, Bf16)

}  // namespace engine::cuda_ops
