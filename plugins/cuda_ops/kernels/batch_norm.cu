#include "kernels/batch_norm.h"
#include "kernels/packs.h"

namespace engine::cuda_ops {
namespace {

// A block of a sum: 32 channels by kLanes rows at a time.
constexpr int kLanes = 8;
constexpr int kMinRows = 8 * kLanes;  // of one part

// Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
// variances, 1979.
__device__ inline void Merge(const Moments& other, Moments* all) {
  if (!(other.count > 0)) return;
  const double count = all->count + other.count;
  const double difference = other.mean - all->mean;
  all->mean += difference * (other.count / count);
  all->squares += other.squares + difference * difference * (all->count * other.count / count);
  all->count = count;
}

__device__ inline void Merge(const GradientSums& other, GradientSums* all) {
  all->dy += other.dy;
  all->product += other.product;
}

// Those of `count` items of each channel.
template <typename Sums>
__device__ inline Sums Merged(const Sums* items, int64_t count, int64_t step, int64_t channels,
                              int64_t channel) {
  Sums all = {};
  for (int64_t i = 0; i < count; i += step) Merge(items[i * channels + channel], &all);
  return all;
}

// The channel of a thread in blocks of 32 channels; blockIdx.y is the part.
__device__ inline int64_t BlockChannel() {
  return int64_t{blockIdx.x} * kWarp + threadIdx.x;
}

// Calls body(index in x) for the rows of part blockIdx.y that the thread has of its channel.
template <typename Body>
__device__ inline void ForElements(int64_t rows, int64_t channels, const Body& body) {
  const int64_t channel = BlockChannel(), part = blockIdx.y, parts = gridDim.y;
  const int64_t end = channel < channels ? rows * (part + 1) / parts : 0;
#pragma unroll 4
  for (int64_t row = rows * part / parts + threadIdx.y; row < end; row += kLanes) {
    body(row * channels + channel);
  }
}

// What the threads of each channel have, merged, becomes target[part][channel].
template <typename Sums>
__device__ inline void MergeLanes(const Sums& own, int64_t channels, Sums* target) {
  __shared__ Sums shared[kLanes][kWarp];
  shared[threadIdx.y][threadIdx.x] = own;
  __syncthreads();
  const int64_t channel = BlockChannel();
  if (threadIdx.y != 0 || channel >= channels) return;
  target[blockIdx.y * channels + channel] = Merged(&shared[0][threadIdx.x], kLanes, 1, kWarp, 0);
}

template <typename Sums>
__global__ void MergeParts(const Sums* parts, int64_t part_count, int64_t channels, Sums* all) {
  const int64_t channel = BlockChannel(), lane = threadIdx.y;
  Sums own = {};
  if (channel < channels) {
    own = Merged(parts + lane * channels, part_count - lane, kLanes, channels, channel);
  }
  MergeLanes(own, channels, all);
}

// The origin is one of the values, so the squares lose no more digits than their number has.
template <typename T>
__global__ void MomentParts(const T* x, int64_t rows, int64_t channels, Moments* parts) {
  double count = 0, origin = 0, sum = 0, squares = 0;
  ForElements(rows, channels, [&](int64_t i) {
    const double value = ToFloat(x[i]);
    if (count == 0) origin = value;
    const double difference = value - origin;
    sum += difference;
    squares += difference * difference;
    count += 1;
  });
  Moments own = {};
  if (count > 0) own = {count, origin + sum / count, squares - sum * (sum / count)};
  MergeLanes(own, channels, parts);
}

template <typename T>
__global__ void GradientParts(const T* x, const T* dy, int64_t rows, int64_t channels,
                              const Moments* batch, GradientSums* parts) {
  const int64_t channel = BlockChannel();
  const double mean = channel < channels ? batch[channel].mean : 0;
  GradientSums own = {};
  ForElements(rows, channels, [&](int64_t i) {
    const double gradient = ToFloat(dy[i]), value = ToFloat(x[i]);
    own.dy += gradient;
    own.product += gradient * (value - mean);
  });
  MergeLanes(own, channels, parts);
}

// Coefficients of a channel for r = (x - mean) slope + at_mean, and scale.
__device__ inline void SetCoefficients(double mean, double slope, double at_mean, double scale,
                                       int64_t channel, int64_t channels, float* coefficients) {
  const auto near_mean = static_cast<float>(mean);
  const double left = static_cast<double>(near_mean) - mean;
  coefficients[channel] = near_mean;
  coefficients[channels + channel] = static_cast<float>(slope);
  coefficients[2 * channels + channel] = static_cast<float>(at_mean + left * slope);
  coefficients[3 * channels + channel] = static_cast<float>(scale);
}

__device__ inline double InverseDeviation(const Moments& batch, double epsilon) {
  return 1 / sqrt((batch.count > 0 ? batch.squares / batch.count : 0) + epsilon);
}

__device__ inline void Follow(double momentum, double batch, float* running) {
  *running =
      static_cast<float>((1.0 - momentum) * static_cast<double>(*running) + momentum * batch);
}

__global__ void UseMoments(const Moments* moments, int32_t ranks, int64_t channels,
                           BatchNormParameters parameters, Moments* batch, float* coefficients) {
  const int64_t channel = ThreadIndex();
  if (channel >= channels) return;
  float* const running_mean = parameters.running_mean + channel;
  float* const running_var = parameters.running_var + channel;
  Moments all = {1, *running_mean, *running_var};
  if (moments != nullptr) {
    all = Merged(moments, ranks, 1, channels, channel);
    batch[channel] = all;
    if (all.count > 0) Follow(parameters.momentum, all.mean, running_mean);
    if (all.count > 1) Follow(parameters.momentum, all.squares / (all.count - 1), running_var);
  }
  const double scale =
      static_cast<double>(parameters.weight[channel]) * InverseDeviation(all, parameters.epsilon);
  SetCoefficients(all.mean, scale, parameters.bias[channel], 0, channel, channels, coefficients);
}

__global__ void UseGradientSums(const GradientSums* sums, int32_t ranks, int32_t rank,
                                int64_t channels, BatchNormParameters parameters,
                                const Moments* batch, ParameterGradient weight,
                                ParameterGradient bias, float* coefficients) {
  const int64_t channel = ThreadIndex();
  if (channel >= channels) return;
  const Moments moments = batch[channel];
  const double inverse_deviation = InverseDeviation(moments, parameters.epsilon);
  const auto put = [&](const ParameterGradient& gradient, double value) {
    if (gradient.data == nullptr) return;
    const float before = gradient.sum ? gradient.data[channel] : 0;
    gradient.data[channel] = before + static_cast<float>(value);
  };
  const GradientSums own = sums[rank * channels + channel];
  put(weight, own.product * inverse_deviation);
  put(bias, own.dy);
  const GradientSums all = Merged(sums, ranks, 1, channels, channel);
  const double share = moments.count > 0 ? 1 / moments.count : 0;
  SetCoefficients(moments.mean, -all.product * share * inverse_deviation * inverse_deviation,
                  -all.dy * share,
                  static_cast<double>(parameters.weight[channel]) * inverse_deviation, channel,
                  channels, coefficients);
}

// `count` packs of kCount channels.
template <int kCount, typename T>
__global__ void Normalize(const T* x, const T* dy, T* out, int64_t channels,
                          const float* coefficients, bool sum, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const float* const own = coefficients + i % (channels / kCount) * kCount;
  const Pack<T, kCount> values = LoadPack<kCount>(x + i * kCount);
  Pack<T, kCount> gradients = {};
  if (dy != nullptr) gradients = LoadPack<kCount>(dy + i * kCount);
  float results[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    results[j] = (ToFloat(values.at[j]) - own[j]) * own[channels + j] + own[2 * channels + j];
    if (dy == nullptr) continue;
    results[j] = (ToFloat(gradients.at[j]) + results[j]) * own[3 * channels + j];
  }
  PutPack<kCount>(out + i * kCount, results, sum);
}

// Starts the first step of a sum, unless there are no rows, and the second.
template <typename Sums, typename... Parameters, typename... Arguments>
cudaError_t LaunchSums(void (*kernel)(Parameters...), int64_t rows, int64_t channels, Sums* parts,
                       Sums* all, cudaStream_t stream, const Arguments&... arguments) noexcept {
  const int64_t part_count = BatchNormParts(rows, channels);
  const dim3 block(kWarp, kLanes);
  const unsigned blocks = BlocksFor(channels, kWarp);
  if (part_count > 0) {
    const cudaError_t error = Launch(kernel, dim3(blocks, static_cast<unsigned>(part_count)), block,
                                     0, stream, arguments..., parts);
    if (error != cudaSuccess) return error;
  }
  return Launch(MergeParts<Sums>, dim3(blocks), block, 0, stream, parts, part_count, channels, all);
}

}  // namespace

// Blocks for every multiprocessor of a large device, parts of at least a few rows for a thread.
int64_t BatchNormParts(int64_t rows, int64_t channels) noexcept {
  constexpr int64_t kBlocks = 1024;
  const int64_t channel_blocks = BlocksFor(channels, kWarp);
  const int64_t wanted = channel_blocks < kBlocks ? kBlocks / channel_blocks : 1;
  const int64_t possible = (rows + kMinRows - 1) / kMinRows;
  return possible < wanted ? possible : wanted;
}

template <typename T>
cudaError_t LaunchMoments(const T* x, int64_t rows, int64_t channels, Moments* parts, Moments* all,
                          cudaStream_t stream) noexcept {
  return LaunchSums(MomentParts<T>, rows, channels, parts, all, stream, x, rows, channels);
}

template <typename T>
cudaError_t LaunchGradientSums(const T* x, const T* dy, int64_t rows, int64_t channels,
                               const Moments* batch, GradientSums* parts, GradientSums* all,
                               cudaStream_t stream) noexcept {
  return LaunchSums(GradientParts<T>, rows, channels, parts, all, stream, x, dy, rows, channels,
                    batch);
}

cudaError_t LaunchUseMoments(const Moments* moments, int32_t ranks, int64_t channels,
                             const BatchNormParameters& parameters, Moments* batch,
                             float* coefficients, cudaStream_t stream) noexcept {
  return Launch(UseMoments, dim3(BlocksFor(channels, kThreads)), dim3(kThreads), 0, stream, moments,
                ranks, channels, parameters, batch, coefficients);
}

cudaError_t LaunchUseGradientSums(const GradientSums* sums, int32_t ranks, int32_t rank,
                                  int64_t channels, const BatchNormParameters& parameters,
                                  const Moments* batch, ParameterGradient weight,
                                  ParameterGradient bias, float* coefficients,
                                  cudaStream_t stream) noexcept {
  return Launch(UseGradientSums, dim3(BlocksFor(channels, kThreads)), dim3(kThreads), 0, stream,
                sums, ranks, rank, channels, parameters, batch, weight, bias, coefficients);
}

template <typename T>
cudaError_t LaunchNormalize(const T* x, const T* dy, T* out, int64_t rows, int64_t channels,
                            const float* coefficients, bool sum, cudaStream_t stream) noexcept {
  return WithPackSize<T>(channels, {x, dy, out}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    return ForEach(rows * channels / kCount, Normalize<kCount, T>, stream, x, dy, out, channels,
                   coefficients, sum);
  });
}

#define CUDA_OPS_INSTANTIATE(T)                                                                 \
  template cudaError_t LaunchMoments(const T*, int64_t, int64_t, Moments*, Moments*,            \
                                     cudaStream_t) noexcept;                                    \
  template cudaError_t LaunchGradientSums(const T*, const T*, int64_t, int64_t, const Moments*, \
                                          GradientSums*, GradientSums*, cudaStream_t) noexcept; \
  template cudaError_t LaunchNormalize(const T*, const T*, T*, int64_t, int64_t, const float*,  \
                                       bool, cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
