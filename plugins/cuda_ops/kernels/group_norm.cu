#include "kernels/group_norm.h"
#include "kernels/packs.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

// A block has a group of a sample. Sums are doubles, and of differences from one of the values, so
// that a large mean costs no digits.
template <typename T>
__global__ void StatisticsKernel(const GroupNormShape shape, const T* x,
                                 RowStatistics* statistics) {
  __shared__ double scratch[kWarp];
  const int64_t sample = blockIdx.x / shape.groups, group = blockIdx.x % shape.groups;
  const int64_t count = shape.positions * shape.width, channels = shape.channels();
  const T* const own = x + sample * shape.positions * channels + group * shape.width;
  const double origin = ToFloat(own[0]);
  double sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    const double value = ToFloat(own[i / shape.width * channels + i % shape.width]) - origin;
    sum += value;
    squares += value * value;
  }
  sum = BlockReduce(sum, AddNumbers(), 0.0, scratch);
  squares = BlockReduce(squares, AddNumbers(), 0.0, scratch);
  if (threadIdx.x != 0) return;
  const double mean = sum / static_cast<double>(count);
  const double variance = squares / static_cast<double>(count) - mean * mean;
  statistics[blockIdx.x] = {
      static_cast<float>(origin + mean),
      static_cast<float>(1 / sqrt((variance > 0 ? variance : 0) + shape.epsilon))};
}

// The group of a sample that an element is in, and its channel.
struct Place {
  int64_t group, channel;

  __device__ Place(const GroupNormShape& shape, int64_t index) {
    channel = index % shape.channels();
    const int64_t sample = index / (shape.positions * shape.channels());
    group = sample * shape.groups + channel / shape.width;
  }
};

__device__ inline float Normalized(float x, const RowStatistics& statistics) {
  return (x - statistics.mean) * statistics.inverse_deviation;
}

template <typename T>
__global__ void NormalizeKernel(const GroupNormShape shape, const T* x, const float* weight,
                                const float* bias, T* y, const RowStatistics* statistics,
                                int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const Place place(shape, i);
  const float n = Normalized(ToFloat(x[i]), statistics[place.group]);
  y[i] = FromFloat<T>(n * weight[place.channel] + bias[place.channel]);
}

// A block has 32 channels of sample blockIdx.y, kLanes positions at a time.
constexpr int kLanes = 8;

template <typename T>
__global__ void SumsKernel(const GroupNormShape shape, const T* x, const T* dy,
                           const RowStatistics* statistics, float* sums) {
  __shared__ float shared[2][kLanes][kWarp];
  const int64_t channel = int64_t{blockIdx.x} * kWarp + threadIdx.x, sample = blockIdx.y;
  const int64_t channels = shape.channels();
  float products = 0, gradients = 0;
  if (channel < channels) {
    const RowStatistics own = statistics[sample * shape.groups + channel / shape.width];
    for (int64_t position = threadIdx.y; position < shape.positions; position += kLanes) {
      const int64_t i = (sample * shape.positions + position) * channels + channel;
      const float gradient = ToFloat(dy[i]);
      products += gradient * Normalized(ToFloat(x[i]), own);
      gradients += gradient;
    }
  }
  shared[0][threadIdx.y][threadIdx.x] = products;
  shared[1][threadIdx.y][threadIdx.x] = gradients;
  __syncthreads();
  if (threadIdx.y > 1 || channel >= channels) return;  // one lane for each of the two sums
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += shared[threadIdx.y][lane][threadIdx.x];
  sums[(sample * 2 + threadIdx.y) * channels + channel] = total;
}

// A warp has a group of a sample. Of RowStatistics, `mean` is mean(g), the other mean(g * n).
__global__ void MeansKernel(const GroupNormShape shape, const float* weight, const float* sums,
                            RowStatistics* means) {
  const int64_t index = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (index >= shape.samples * shape.groups) return;  // the whole warp
  const int64_t sample = index / shape.groups, first = index % shape.groups * shape.width;
  const float* const products = sums + sample * 2 * shape.channels();
  const float* const gradients = products + shape.channels();
  float product = 0, gradient = 0;
  for (int64_t i = first + threadIdx.x % kWarp; i < first + shape.width; i += kWarp) {
    product += weight[i] * products[i];
    gradient += weight[i] * gradients[i];
  }
  product = WarpReduce(product, AddNumbers());
  gradient = WarpReduce(gradient, AddNumbers());
  const auto count = static_cast<float>(shape.positions * shape.width);
  if (threadIdx.x % kWarp == 0) means[index] = {gradient / count, product / count};
}

template <typename T>
__global__ void GradientKernel(const GroupNormShape shape, const T* x, const T* dy,
                               const float* weight, const RowStatistics* statistics,
                               const RowStatistics* means, T* dx, bool sum, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const Place place(shape, i);
  const RowStatistics own = statistics[place.group], mean = means[place.group];
  const float n = Normalized(ToFloat(x[i]), own);
  const float g = ToFloat(dy[i]) * weight[place.channel];
  const float result = own.inverse_deviation * (g - mean.mean - n * mean.inverse_deviation);
  dx[i] = FromFloat<T>(sum ? ToFloat(dx[i]) + result : result);
}

}  // namespace

template <typename T>
cudaError_t LaunchGroupNorm(const GroupNormShape& shape, const T* x, const float* weight,
                            const float* bias, T* y, RowStatistics* statistics,
                            cudaStream_t stream) noexcept {
  if (shape.count() == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(shape.samples * shape.groups);
  const cudaError_t error =
      Launch(StatisticsKernel<T>, dim3(blocks), dim3(kThreads), 0, stream, shape, x, statistics);
  if (error != cudaSuccess) return error;
  return ForEach(shape.count(), NormalizeKernel<T>, stream, shape, x, weight, bias, y, statistics);
}

template <typename T>
cudaError_t LaunchGroupNormSums(const GroupNormShape& shape, const T* x, const T* dy,
                                const RowStatistics* statistics, float* sums,
                                cudaStream_t stream) noexcept {
  if (shape.count() == 0) return cudaSuccess;
  const dim3 grid(BlocksFor(shape.channels(), kWarp), static_cast<unsigned>(shape.samples));
  return Launch(SumsKernel<T>, grid, dim3(kWarp, kLanes), 0, stream, shape, x, dy, statistics,
                sums);
}

template <typename T>
cudaError_t LaunchGroupNormGradient(const GroupNormShape& shape, const T* x, const T* dy,
                                    const float* weight, const RowStatistics* statistics,
                                    const float* sums, RowStatistics* means, T* dx, bool sum,
                                    cudaStream_t stream) noexcept {
  if (shape.count() == 0) return cudaSuccess;
  const unsigned blocks = BlocksFor(shape.samples * shape.groups, kThreads / kWarp);
  const cudaError_t error =
      Launch(MeansKernel, dim3(blocks), dim3(kThreads), 0, stream, shape, weight, sums, means);
  if (error != cudaSuccess) return error;
  return ForEach(shape.count(), GradientKernel<T>, stream, shape, x, dy, weight, statistics, means,
                 dx, sum);
}

#define CUDA_OPS_INSTANTIATE(T)                                                                  \
  template cudaError_t LaunchGroupNorm(const GroupNormShape&, const T*, const float*,            \
                                       const float*, T*, RowStatistics*, cudaStream_t) noexcept; \
  template cudaError_t LaunchGroupNormSums(const GroupNormShape&, const T*, const T*,            \
                                           const RowStatistics*, float*, cudaStream_t) noexcept; \
  template cudaError_t LaunchGroupNormGradient(const GroupNormShape&, const T*, const T*,        \
                                               const float*, const RowStatistics*, const float*, \
                                               RowStatistics*, T*, bool, cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
