#include "kernels/batch_norm.h"
#include "kernels/channel_packs.h"

namespace engine::cuda_ops {
namespace {

constexpr int kThreads = 256;
// A block of the first step: 32 channels by kLanes rows at a time, of which a thread takes kGroup.
constexpr int kLanes = 8;
constexpr int kGroup = 8;

// Two numbers of a channel for a set of rows.
struct Moments {
  double count, mean, squares;

  // Chan, Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample
  // variances, 1979.
  __device__ void Merge(const Moments& other) {
    if (!(other.count > 0)) return;
    const double all = count + other.count;
    const double difference = other.mean - mean;
    mean += difference * (other.count / all);
    squares += other.squares + difference * difference * (count * other.count / all);
    count = all;
  }
};

// A double as the sum of two floats, to 48 bits.
struct FloatPair {
  float high, low;

  __device__ explicit FloatPair(double value)
      : high(static_cast<float>(value)),
        low(static_cast<float>(value - static_cast<double>(high))) {}
};

__device__ inline double Value(float high, float low) {
  return static_cast<double>(high) + static_cast<double>(low);
}

struct RowRange {
  int64_t begin, end;
};

__device__ inline RowRange PartOf(int64_t part, int64_t parts, int64_t rows) {
  return {rows * part / parts, rows * (part + 1) / parts};
}

// The channel of a thread in blocks of 32 channels; blockIdx.y is the part.
__device__ inline int64_t BlockChannel() {
  return int64_t{blockIdx.x} * kWarp + threadIdx.x;
}

// Calls body(values..., count) for groups of rows of a thread: up to kGroup rows, kLanes apart.
template <typename Body>
__device__ inline void ForGroups(const RowRange& rows, const Body& body) {
  for (int64_t first = rows.begin + threadIdx.y; first < rows.end; first += kGroup * kLanes) {
    const int64_t left = (rows.end - first + kLanes - 1) / kLanes;
    body(first, left < kGroup ? static_cast<int>(left) : kGroup);
  }
}

// The moments of a group are taken around its own mean, in float; then they are merged in double.
template <typename T>
__global__ void MomentParts(const T* x, int64_t rows, int64_t channels, double* parts) {
  __shared__ Moments shared[kLanes][kWarp];
  const int64_t channel = BlockChannel();
  const RowRange range = PartOf(blockIdx.y, gridDim.y, rows);
  Moments all = {};
  ForGroups(range, [&](int64_t first, int count) {
    if (channel >= channels) return;
    float differences[kGroup];
    const float origin = ToFloat(x[first * channels + channel]);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      differences[i] =
          i < count ? ToFloat(x[(first + int64_t{i} * kLanes) * channels + channel]) - origin : 0;
      sum += differences[i];
    }
    const float mean = sum / static_cast<float>(count);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float deviation = i < count ? differences[i] - mean : 0;
      squares += deviation * deviation;
    }
    all.Merge({static_cast<double>(count), static_cast<double>(origin) + static_cast<double>(mean),
               static_cast<double>(squares)});
  });
  shared[threadIdx.y][threadIdx.x] = all;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int i = 1; i < kLanes; ++i) all.Merge(shared[i][threadIdx.x]);
  double* const target = parts + (int64_t{blockIdx.y} * channels + channel) * 2;
  target[0] = all.mean;
  target[1] = all.squares;
}

// A thread of kLanes for each channel takes every kLanes-th part.
__global__ void MergeMoments(const double* parts, int64_t part_count, int64_t rows,
                             int64_t channels, float* moments) {
  __shared__ Moments shared[kLanes][kWarp];
  const int64_t channel = BlockChannel();
  Moments all = {};
  for (int64_t part = threadIdx.y; channel < channels && part < part_count; part += kLanes) {
    const double* const from = parts + (part * channels + channel) * 2;
    const RowRange range = PartOf(part, part_count, rows);
    all.Merge({static_cast<double>(range.end - range.begin), from[0], from[1]});
  }
  shared[threadIdx.y][threadIdx.x] = all;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int i = 1; i < kLanes; ++i) all.Merge(shared[i][threadIdx.x]);
  const FloatPair mean(all.mean);
  moments[2 + channel] = mean.high;
  moments[2 + channels + channel] = mean.low;
  moments[2 + 2 * channels + channel] = static_cast<float>(all.squares);
  if (channel != 0) return;
  const FloatPair count(static_cast<double>(rows));
  moments[0] = count.high;
  moments[1] = count.low;
}

struct Sums {
  double dy, product;  // of dy, of dy (x - high)
};

template <typename T>
__global__ void GradientParts(const T* x, const T* dy, int64_t rows, int64_t channels,
                              const float* high, double* parts) {
  __shared__ Sums shared[kLanes][kWarp];
  const int64_t channel = BlockChannel();
  const RowRange range = PartOf(blockIdx.y, gridDim.y, rows);
  const float origin = channel < channels ? high[channel] : 0;
  Sums all = {};
  ForGroups(range, [&](int64_t first, int count) {
    if (channel >= channels) return;
    float sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (i >= count) continue;
      const int64_t index = (first + int64_t{i} * kLanes) * channels + channel;
      const float gradient = ToFloat(dy[index]);
      sum += gradient;
      product += gradient * (ToFloat(x[index]) - origin);
    }
    all.dy += static_cast<double>(sum);
    all.product += static_cast<double>(product);
  });
  shared[threadIdx.y][threadIdx.x] = all;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int i = 1; i < kLanes; ++i) {
    all.dy += shared[i][threadIdx.x].dy;
    all.product += shared[i][threadIdx.x].product;
  }
  double* const target = parts + (int64_t{blockIdx.y} * channels + channel) * 2;
  target[0] = all.dy;
  target[1] = all.product;
}

__global__ void MergeGradients(const double* parts, int64_t part_count, int64_t channels,
                               BatchNormSaved saved, float* sums) {
  __shared__ Sums shared[kLanes][kWarp];
  const int64_t channel = BlockChannel();
  Sums all = {};
  for (int64_t part = threadIdx.y; channel < channels && part < part_count; part += kLanes) {
    all.dy += parts[(part * channels + channel) * 2];
    all.product += parts[(part * channels + channel) * 2 + 1];
  }
  shared[threadIdx.y][threadIdx.x] = all;
  __syncthreads();
  if (threadIdx.y != 0 || channel >= channels) return;
  for (int i = 1; i < kLanes; ++i) {
    all.dy += shared[i][threadIdx.x].dy;
    all.product += shared[i][threadIdx.x].product;
  }
  sums[channel] = static_cast<float>(all.dy);
  sums[channels + channel] =
      static_cast<float>((all.product - static_cast<double>(saved.low[channel]) * all.dy) *
                         static_cast<double>(saved.inverse_deviation[channel]));
}

__device__ inline void SetCoefficients(const BatchNormParameters& parameters, int64_t channel,
                                       int64_t channels, const FloatPair& mean,
                                       double inverse_deviation, float* coefficients) {
  const double scale = static_cast<double>(parameters.weight[channel]) * inverse_deviation;
  const auto bias = static_cast<double>(parameters.bias[channel]);
  coefficients[channel] = mean.high;
  coefficients[channels + channel] = static_cast<float>(scale);
  coefficients[2 * channels + channel] =
      static_cast<float>(bias - static_cast<double>(mean.low) * scale);
}

__device__ inline void Follow(double momentum, double batch, float* running) {
  *running =
      static_cast<float>((1.0 - momentum) * static_cast<double>(*running) + momentum * batch);
}

__device__ inline int64_t ThreadIndex() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__global__ void UseBatch(const float* moments, int32_t ranks, int64_t channels,
                         BatchNormParameters parameters, BatchNormSaved saved,
                         float* coefficients) {
  const int64_t channel = ThreadIndex();
  if (channel >= channels) return;
  Moments all = {};
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const float* const own = moments + rank * MomentFloats(channels);
    all.Merge({Value(own[0], own[1]), Value(own[2 + channel], own[2 + channels + channel]),
               static_cast<double>(own[2 + 2 * channels + channel])});
  }
  const double variance = all.count > 0 ? all.squares / all.count : 0;
  const double inverse_deviation = 1 / sqrt(variance + parameters.epsilon);
  const FloatPair mean(all.mean);
  saved.high[channel] = mean.high;
  saved.low[channel] = mean.low;
  saved.inverse_deviation[channel] = static_cast<float>(inverse_deviation);
  if (channel == 0) {
    const FloatPair count(all.count);
    saved.count[0] = count.high;
    saved.count[1] = count.low;
  }
  SetCoefficients(parameters, channel, channels, mean, inverse_deviation, coefficients);
  if (all.count > 0) Follow(parameters.momentum, all.mean, parameters.running_mean + channel);
  if (all.count > 1) {
    Follow(parameters.momentum, all.squares / (all.count - 1), parameters.running_var + channel);
  }
}

__global__ void UseRunning(int64_t channels, BatchNormParameters parameters, float* coefficients) {
  const int64_t channel = ThreadIndex();
  if (channel >= channels) return;
  const auto variance = static_cast<double>(parameters.running_var[channel]);
  SetCoefficients(parameters, channel, channels,
                  FloatPair(static_cast<double>(parameters.running_mean[channel])),
                  1 / sqrt(variance + parameters.epsilon), coefficients);
}

// `count` packs of kCount channels.
template <int kCount, typename T>
__global__ void Normalize(const T* x, T* y, int64_t count, int64_t channels,
                          const float* coefficients) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const float* const own = coefficients + i % (channels / kCount) * kCount;
  const Pack<T, kCount> values = LoadPack<kCount>(x + i * kCount);
  float results[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    results[j] = (ToFloat(values.at[j]) - own[j]) * own[channels + j] + own[2 * channels + j];
  }
  PutPack<kCount>(y + i * kCount, results, false);
}

__global__ void ParameterGradient(const float* sums, float* gradient, int64_t channels, bool sum) {
  const int64_t channel = ThreadIndex();
  if (channel >= channels) return;
  gradient[channel] = sum ? gradient[channel] + sums[channel] : sums[channel];
}

__global__ void Slopes(const float* sums, int32_t ranks, int64_t channels, const float* weight,
                       BatchNormSaved saved, float* coefficients) {
  const int64_t channel = ThreadIndex();
  if (channel >= channels) return;
  double dy = 0, product = 0;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const float* const own = sums + rank * GradientFloats(channels);
    dy += static_cast<double>(own[channel]);
    product += static_cast<double>(own[channels + channel]);
  }
  const double count = Value(saved.count[0], saved.count[1]);
  const double share = count > 0 ? 1 / count : 0;
  const auto inverse_deviation = static_cast<double>(saved.inverse_deviation[channel]);
  const double slope = product * share * inverse_deviation;
  coefficients[channel] =
      static_cast<float>(dy * share - static_cast<double>(saved.low[channel]) * slope);
  coefficients[channels + channel] = static_cast<float>(slope);
  coefficients[2 * channels + channel] =
      static_cast<float>(static_cast<double>(weight[channel]) * inverse_deviation);
}

template <int kCount, typename T>
__global__ void NormalizeGradient(const T* x, const T* dy, T* dx, int64_t count, int64_t channels,
                                  const float* high, const float* coefficients, bool sum) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const int64_t channel = i % (channels / kCount) * kCount;
  const float* const own = coefficients + channel;
  const Pack<T, kCount> values = LoadPack<kCount>(x + i * kCount);
  const Pack<T, kCount> gradients = LoadPack<kCount>(dy + i * kCount);
  float results[kCount];
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float difference = ToFloat(values.at[j]) - high[channel + j];
    results[j] = ((ToFloat(gradients.at[j]) - own[j]) - difference * own[channels + j]) *
                 own[2 * channels + j];
  }
  PutPack<kCount>(dx + i * kCount, results, sum);
}

dim3 ChannelBlocks(int64_t channels, int64_t parts) noexcept {
  return dim3(BlocksFor(channels, kWarp), static_cast<unsigned>(parts));
}

// A thread for each channel, or element.
template <typename Kernel, typename... Arguments>
cudaError_t ForEach(int64_t count, Kernel* kernel, cudaStream_t stream,
                    const Arguments&... arguments) noexcept {
  if (count == 0) return cudaSuccess;
  return Launch(kernel, dim3(BlocksFor(count, kThreads)), dim3(kThreads), 0, stream, arguments...);
}

}  // namespace

// Blocks for every multiprocessor of a large device, parts of at least a few groups.
int64_t BatchNormParts(int64_t rows, int64_t channels) noexcept {
  constexpr int64_t kBlocks = 1024;
  const int64_t channel_blocks = BlocksFor(channels, kWarp);
  const int64_t wanted = channel_blocks < kBlocks ? kBlocks / channel_blocks : 1;
  const int64_t possible = (rows + kGroup * kLanes - 1) / (kGroup * kLanes);
  return possible < wanted ? possible : wanted;
}

template <typename T>
cudaError_t LaunchMoments(const T* x, int64_t rows, int64_t channels, double* parts, float* moments,
                          cudaStream_t stream) noexcept {
  const int64_t part_count = BatchNormParts(rows, channels);
  const dim3 block(kWarp, kLanes);
  if (part_count > 0) {
    const cudaError_t error = Launch(MomentParts<T>, ChannelBlocks(channels, part_count), block, 0,
                                     stream, x, rows, channels, parts);
    if (error != cudaSuccess) return error;
  }
  return Launch(MergeMoments, ChannelBlocks(channels, 1), block, 0, stream, parts, part_count, rows,
                channels, moments);
}

template <typename T>
cudaError_t LaunchGradientSums(const T* x, const T* dy, int64_t rows, int64_t channels,
                               const BatchNormSaved& saved, double* parts, float* sums,
                               cudaStream_t stream) noexcept {
  const int64_t part_count = BatchNormParts(rows, channels);
  const dim3 block(kWarp, kLanes);
  if (part_count > 0) {
    const cudaError_t error = Launch(GradientParts<T>, ChannelBlocks(channels, part_count), block,
                                     0, stream, x, dy, rows, channels, saved.high, parts);
    if (error != cudaSuccess) return error;
  }
  return Launch(MergeGradients, ChannelBlocks(channels, 1), block, 0, stream, parts, part_count,
                channels, saved, sums);
}

cudaError_t LaunchUseBatch(const float* moments, int32_t ranks, int64_t channels,
                           const BatchNormParameters& parameters, const BatchNormSaved& saved,
                           float* coefficients, cudaStream_t stream) noexcept {
  return ForEach(channels, UseBatch, stream, moments, ranks, channels, parameters, saved,
                 coefficients);
}

cudaError_t LaunchUseRunning(int64_t channels, const BatchNormParameters& parameters,
                             float* coefficients, cudaStream_t stream) noexcept {
  return ForEach(channels, UseRunning, stream, channels, parameters, coefficients);
}

template <typename T>
cudaError_t LaunchNormalize(const T* x, T* y, int64_t rows, int64_t channels,
                            const float* coefficients, cudaStream_t stream) noexcept {
  return WithPackSize<T>(channels, {x, y}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    const int64_t count = rows * channels / kCount;
    return ForEach(count, Normalize<kCount, T>, stream, x, y, count, channels, coefficients);
  });
}

cudaError_t LaunchParameterGradient(const float* sums, float* gradient, int64_t channels, bool sum,
                                    cudaStream_t stream) noexcept {
  return ForEach(channels, ParameterGradient, stream, sums, gradient, channels, sum);
}

cudaError_t LaunchSlopes(const float* sums, int32_t ranks, int64_t channels, const float* weight,
                         const BatchNormSaved& saved, float* coefficients,
                         cudaStream_t stream) noexcept {
  return ForEach(channels, Slopes, stream, sums, ranks, channels, weight, saved, coefficients);
}

template <typename T>
cudaError_t LaunchNormalizeGradient(const T* x, const T* dy, T* dx, int64_t rows, int64_t channels,
                                    const float* high, const float* coefficients, bool sum,
                                    cudaStream_t stream) noexcept {
  return WithPackSize<T>(channels, {x, dy, dx}, [&](auto pack) {
    constexpr int kCount = decltype(pack)::value;
    const int64_t count = rows * channels / kCount;
    return ForEach(count, NormalizeGradient<kCount, T>, stream, x, dy, dx, count, channels, high,
                   coefficients, sum);
  });
}

#define CUDA_OPS_INSTANTIATE(T)                                                          \
  template cudaError_t LaunchMoments(const T*, int64_t, int64_t, double*, float*,        \
                                     cudaStream_t) noexcept;                             \
  template cudaError_t LaunchGradientSums(const T*, const T*, int64_t, int64_t,          \
                                          const BatchNormSaved&, double*, float*,        \
                                          cudaStream_t) noexcept;                        \
  template cudaError_t LaunchNormalize(const T*, T*, int64_t, int64_t, const float*,     \
                                       cudaStream_t) noexcept;                           \
  template cudaError_t LaunchNormalizeGradient(const T*, const T*, T*, int64_t, int64_t, \
                                               const float*, const float*, bool,         \
                                               cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
