#include "kernels/flat_math.h"
#include "kernels/packs.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

// An update of one span, by one block.
struct SpanUpdate {
  KernelSpan span;
  KernelRule rule;
  AdamWCoefficients folded;
  float rate, scale;

  // Elements i .. i + kPack, at addresses that are multiples of as many.
  template <int kPack>
  __device__ void At(int64_t i) const {
    using Floats = Pack<float, kPack>;
    const auto load = [i](const float* data) { return *reinterpret_cast<const Floats*>(data + i); };
    Floats value = load(span.value), first = {}, second = {};
    const Floats gradient = load(span.gradient);
    if (span.states[0] != nullptr) first = load(span.states[0]);
    if (span.states[1] != nullptr) second = load(span.states[1]);
    for (int j = 0; j < kPack; ++j) {
      if (rule.adamw) {
        value.at[j] =
            AdamWElement(folded, rule.beta1, rule.beta2, rule.epsilon, gradient.at[j] * scale,
                         value.at[j], &first.at[j], &second.at[j]);
      } else {
        const float g = gradient.at[j] * scale + span.weight_decay * value.at[j];
        float* const velocity = span.states[0] == nullptr ? nullptr : &first.at[j];
        value.at[j] = SgdElement(rate, rule.momentum, rule.nesterov, g, value.at[j], velocity);
      }
    }
    *reinterpret_cast<Floats*>(span.value + i) = value;
    if (span.states[0] != nullptr) *reinterpret_cast<Floats*>(span.states[0] + i) = first;
    if (span.states[1] != nullptr) *reinterpret_cast<Floats*>(span.states[1] + i) = second;
    if (span.value_bf16 == nullptr) return;
    Pack<Bf16, kPack> rounded;
    for (int j = 0; j < kPack; ++j) rounded.at[j] = FromFloat<Bf16>(value.at[j]);
    *reinterpret_cast<Pack<Bf16, kPack>*>(static_cast<Bf16*>(span.value_bf16) + i) = rounded;
  }

  // Whether four elements at a time may be done from the beginning of the span on.
  __device__ bool IsPacked() const {
    return IsAligned16(span.value) && IsAligned16(span.gradient) && IsAligned16(span.states[0]) &&
           IsAligned16(span.states[1]) && reinterpret_cast<uintptr_t>(span.value_bf16) % 8 == 0;
  }
};

// Elements [begin, end) of the calling block are its span's; a block never has two spans.
__global__ void UpdateKernel(const UpdateSpans spans, const KernelRule rule, const uint64_t* step,
                             const float* learning_rate) {
  __shared__ AdamWCoefficients folded;
  const int32_t index = spans.IndexOf(blockIdx.x);
  const KernelSpan& span = spans.at[index];
  const float rate = *learning_rate * span.learning_rate_scale;
  if (rule.adamw && threadIdx.x == 0) {
    folded = FoldAdamW(rate, span.weight_decay, rule.beta1, rule.beta2, static_cast<double>(*step));
  }
  __syncthreads();
  const SpanUpdate update = {span, rule, rule.adamw ? folded : AdamWCoefficients{}, rate,
                             *span.gradient_scale};
  const int64_t begin =
      (static_cast<int64_t>(blockIdx.x) - spans.first_block[index]) * kUpdateBlock;
  const int64_t end = begin + kUpdateBlock < span.count ? begin + kUpdateBlock : span.count;
  constexpr int kPack = 4;
  const int64_t packed_end = update.IsPacked() ? end - (end - begin) % kPack : begin;
  for (int64_t i = begin + threadIdx.x * kPack; i < packed_end; i += kThreads * kPack) {
    update.At<kPack>(i);
  }
  for (int64_t i = packed_end + threadIdx.x; i < end; i += kThreads) update.At<1>(i);
}

__global__ void SquaresKernel(const SquareSpans spans, double* partials) {
  __shared__ double scratch[kWarp];
  const int32_t index = spans.IndexOf(blockIdx.x);
  const SquareSpan& span = spans.at[index];
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - spans.first_block[index]) * spans.chunk;
  const int64_t end = begin + spans.chunk < span.count ? begin + spans.chunk : span.count;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    const double x = span.data[i];
    sum += x * x;
  }
  sum = BlockReduce(sum, AddNumbers(), 0.0, scratch);
  const double scale = *span.scale;
  if (threadIdx.x == 0) partials[blockIdx.x] = sum * scale * scale;
}

// One block.
__global__ void SumKernel(const double* partials, int64_t count, float* sum) {
  __shared__ double scratch[kWarp];
  double total = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) total += partials[i];
  total = BlockReduce(total, AddNumbers(), 0.0, scratch);
  if (threadIdx.x == 0) *sum = static_cast<float>(total);
}

__global__ void ScaleToNormKernel(const ScaleTable scales, const float* square, float max_norm) {
  const float norm = sqrtf(*square);
  const int i = static_cast<int>(threadIdx.x);
  if (i < scales.count && norm > max_norm) *scales.at[i] *= max_norm / norm;
}

__global__ void ClampValueKernel(float* data, const float* scale, float limit, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  // The same bounds on the unscaled value.
  const float bound = limit / *scale, x = data[i];
  data[i] = x > bound ? bound : (x < -bound ? -bound : x);
}

__global__ void FillQuotientKernel(const float* divisor, float factor, float* scales,
                                   int64_t count) {
  const int64_t i = ThreadIndex();
  if (i < count) scales[i] = *divisor > 0 ? factor / *divisor : factor;
}

__global__ void AddKernel(float* target, const float* source, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i < count) target[i] += source[i];
}

template <typename From, typename To>
__global__ void ConvertKernel(const From* source, To* target, int64_t count) {
  const int64_t i = ThreadIndex();
  if (i < count) target[i] = FromFloat<To>(ToFloat(source[i]));
}

}  // namespace

cudaError_t LaunchUpdate(const UpdateSpans& spans, const KernelRule& rule, const uint64_t* step,
                         const float* learning_rate, cudaStream_t stream) noexcept {
  return Launch(UpdateKernel, dim3(static_cast<unsigned>(spans.blocks)), dim3(kThreads), 0, stream,
                spans, rule, step, learning_rate);
}

cudaError_t LaunchSquares(const SquareSpans& spans, double* partials,
                          cudaStream_t stream) noexcept {
  return Launch(SquaresKernel, dim3(static_cast<unsigned>(spans.blocks)), dim3(kThreads), 0, stream,
                spans, partials);
}

cudaError_t LaunchSum(const double* partials, int64_t count, float* sum,
                      cudaStream_t stream) noexcept {
  return Launch(SumKernel, dim3(1), dim3(kThreads), 0, stream, partials, count, sum);
}

cudaError_t LaunchScaleToNorm(const ScaleTable& scales, const float* square, float max_norm,
                              cudaStream_t stream) noexcept {
  if (scales.count == 0) return cudaSuccess;
  constexpr int kScaleThreads = (kMaxScales + kWarp - 1) / kWarp * kWarp;
  return Launch(ScaleToNormKernel, dim3(1), dim3(kScaleThreads), 0, stream, scales, square,
                max_norm);
}

cudaError_t LaunchClampValue(float* data, int64_t count, const float* scale, float limit,
                             cudaStream_t stream) noexcept {
  return ForEach(count, ClampValueKernel, stream, data, scale, limit);
}

cudaError_t LaunchFillQuotient(const float* divisor, float factor, float* scales, int64_t count,
                               cudaStream_t stream) noexcept {
  return ForEach(count, FillQuotientKernel, stream, divisor, factor, scales);
}

cudaError_t LaunchAdd(float* target, const float* source, int64_t count,
                      cudaStream_t stream) noexcept {
  return ForEach(count, AddKernel, stream, target, source);
}

template <typename From, typename To>
cudaError_t LaunchConvert(const From* source, To* target, int64_t count,
                          cudaStream_t stream) noexcept {
  return ForEach(count, ConvertKernel<From, To>, stream, source, target);
}

template cudaError_t LaunchConvert(const float*, Bf16*, int64_t, cudaStream_t) noexcept;
template cudaError_t LaunchConvert(const Bf16*, float*, int64_t, cudaStream_t) noexcept;
template cudaError_t LaunchConvert(const float*, __half*, int64_t, cudaStream_t) noexcept;
template cudaError_t LaunchConvert(const __half*, float*, int64_t, cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
