// A block has a row. To know the loss it reads the row once: each thread keeps the sum of the
// exponentials of what it has seen beside the largest of that, so no row has to fit anywhere. To
// write the gradient over the row it keeps what it has read in shared memory, or reads it again.
#include "kernels/element.h"
#include "kernels/launch.h"
#include "kernels/loss.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kSumThreads = 1024;

// What a row is multiplied with: sample weight, share of the target and of each class, with the
// weights of classes. A row without a target has a sample weight of 0.
struct RowTerms {
  float sample, own, each, own_weight;

  template <typename T>
  __device__ RowTerms(const SoftmaxLossCall<T>& call, int64_t row) {
    const LossTerms& terms = call.terms;
    const int32_t target = call.targets[row];
    const bool counts = target != terms.ignored && target >= 0 && target < call.width;
    sample = counts ? SampleWeight(terms, row) : 0.0f;
    own_weight = counts && terms.class_weights != nullptr ? terms.class_weights[target] : 1.0f;
    own = (1.0f - terms.smoothing) * own_weight;
    each = terms.smoothing / static_cast<float>(call.width);
  }
};

__device__ inline float ClassWeight(const LossTerms& terms, int64_t i) {
  return terms.class_weights == nullptr ? 1.0f : terms.class_weights[i];
}

// Factors of what the gradient of a row is made of: softmax(x), onehot(target) and, if kSpreads, the
// weights of classes.
template <bool kSpreads>
struct RowSlope {
  float softmax, target, spread, log_sum;

  __device__ RowSlope(const RowTerms& terms, float all_weights, float log_sum_of_row, float scale)
      : softmax(scale * terms.sample * (terms.own + (kSpreads ? terms.each * all_weights : 0.0f))),
        target(scale * terms.sample * terms.own),
        spread(scale * terms.sample * terms.each),
        log_sum(log_sum_of_row) {}

  template <typename T>
  __device__ float At(float x, bool is_target, int64_t i, const LossTerms& terms) const {
    const float slope = softmax * ExponentialOf<T>(x - log_sum) - (is_target ? target : 0.0f);
    return kSpreads ? slope - spread * ClassWeight(terms, i) : slope;
  }
};

// What a thread, and then the block, knows of a row.
struct RowScan {
  ExponentialSum sum;
  float beaten = 0;                 // 1: the target is not the first of the largest
  float weights = 0, distance = 0;  // sums over classes of their weights w, and of w (x - target_x)

  template <typename T, int kPack>
  __device__ void See(const Pack<T, kPack>& pack, int64_t column, float target_x, int64_t target) {
    float x[kPack];
    float largest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      x[j] = ToFloat(pack.at[j]);
      largest = x[j] > largest ? x[j] : largest;
    }
    // Rarely so for long: the target is among the largest, or something has beaten it.
    if (beaten == 0 && largest >= target_x) {
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        if (Beats(x[j], column + j, target_x, target)) beaten = 1;
      }
    }
    sum.Raise(largest);
    const float origin = sum.largest == -INFINITY ? 0.0f : sum.largest;
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum.factor += ExponentialOf<T>(x[j] - origin);
  }

  template <typename T, int kPack>
  __device__ void Spread(const Pack<T, kPack>& pack, int64_t column, float target_x,
                         const LossTerms& terms) {
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const float weight = ClassWeight(terms, column + j);
      weights += weight;
      distance += weight * (ToFloat(pack.at[j]) - target_x);
    }
  }

  template <bool kSpreads>
  __device__ void Combine(float* scratch) {
    const float largest = BlockReduce(sum.largest, MaxFloats(), -INFINITY, scratch);
    sum.Raise(largest);
    sum.factor = BlockReduce(sum.factor, AddNumbers(), 0.0f, scratch);
    beaten = BlockReduce(beaten, MaxFloats(), 0.0f, scratch);
    if (!kSpreads) return;
    weights = BlockReduce(weights, AddNumbers(), 0.0f, scratch);
    distance = BlockReduce(distance, AddNumbers(), 0.0f, scratch);
  }
};

__device__ float LogSumOf(const RowScan& scan) {
  return scan.sum.largest + logf(scan.sum.factor);
}

// The loss of a row whose target is a class, from what its block has seen. Not log_sum - target_x,
// which would cancel.
__device__ RowLoss LossOf(const RowScan& scan, float target_x, const RowTerms& terms) {
  const bool correct = scan.beaten == 0 && target_x == target_x;  // not a NaN
  const float own = (scan.sum.largest - target_x) + logf(scan.sum.factor);
  const float spread = scan.weights * own - scan.distance;
  const float weight = terms.sample * terms.own_weight;
  return {terms.sample * (terms.own * own + (terms.each > 0 ? terms.each * spread : 0.0f)), weight,
          correct ? weight : 0.0f};
}

// Whether the row counts. A target that should be a class and is not is reported.
template <typename T>
__device__ bool CheckRow(const SoftmaxLossCall<T>& call, const RowTerms& terms, int64_t row,
                         RowLoss* losses, DeviceFault* fault) {
  if (terms.sample > 0) return true;
  if (threadIdx.x != 0) return false;
  losses[row] = {0, 0, 0};
  const int32_t target = call.targets[row];
  CheckSampleWeight(call.terms, SampleWeight(call.terms, row), row, fault);
  if (target != call.terms.ignored && (target < 0 || target >= call.width)) {
    ReportFault(fault, DeviceFault::kTarget, target, row, static_cast<int32_t>(call.width));
  }
  return false;
}

// A thread has the same packs in both passes, so what it keeps is for itself. kSpreads: every class
// has a share in the loss.
template <typename T, int kPack, bool kHold, bool kSpreads>
__global__ void RowLossKernel(const SoftmaxLossCall<T> call, RowLoss* losses, DeviceFault* fault) {
  using Packed = Pack<T, kPack>;
  __shared__ float scratch[kWarp];
  Packed* const held = kHold ? reinterpret_cast<Packed*>(DynamicShared()) : nullptr;
  const int64_t row = blockIdx.x;
  const int32_t target = call.targets[row];
  const RowTerms terms(call, row);
  const auto* const packs = reinterpret_cast<const Packed*>(call.x + row * call.width);
  auto* const slopes = reinterpret_cast<Packed*>(call.dx + row * call.width);
  const int count = static_cast<int>(call.width / kPack), threads = static_cast<int>(blockDim.x);
  if (!CheckRow(call, terms, row, losses, fault)) {
    Packed zeros;
    for (int j = 0; j < kPack; ++j) zeros.at[j] = FromFloat<T>(0.0f);
    for (int i = static_cast<int>(threadIdx.x); call.dx != nullptr && i < count; i += threads) {
      slopes[i] = zeros;
    }
    return;
  }
  const float target_x = ToFloat(call.x[row * call.width + target]);
  RowScan scan;
  constexpr int kBatch = 4;  // packs under way at a time
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kBatch * threads) {
    Packed x[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * threads < count) x[b] = packs[first + b * threads];
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * threads;
      if (i >= count) break;
      scan.See(x[b], int64_t{i} * kPack, target_x, target);
      if (kSpreads) scan.Spread(x[b], int64_t{i} * kPack, target_x, call.terms);
      if (kHold) held[i] = x[b];
    }
  }
  scan.Combine<kSpreads>(scratch);  // all threads have read target_x behind this
  const float log_sum = LogSumOf(scan);
  if (threadIdx.x == 0) {
    losses[row] = LossOf(scan, target_x, terms);
    if (call.log_sums != nullptr) call.log_sums[row] = log_sum;
  }
  const RowSlope<kSpreads> slope(terms, scan.weights, log_sum, 1.0f);
  for (int i = static_cast<int>(threadIdx.x); call.dx != nullptr && i < count; i += threads) {
    Packed x = kHold ? held[i] : packs[i];
    for (int j = 0; j < kPack; ++j) {
      const int column = i * kPack + j;
      x.at[j] = FromFloat<T>(
          slope.template At<T>(ToFloat(x.at[j]), column == target, column, call.terms));
    }
    slopes[i] = x;
  }
}

__global__ void SumLossesKernel(const RowLoss* losses, int64_t rows, LossTerms terms, float* out) {
  __shared__ double scratch[kWarp];
  double loss = 0, weights = 0, correct = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    const RowLoss own = losses[row];
    loss += own.loss;
    weights += own.weight;
    correct += own.correct;
  }
  loss = BlockReduce(loss, AddNumbers(), 0.0, scratch);
  weights = BlockReduce(weights, AddNumbers(), 0.0, scratch);
  correct = BlockReduce(correct, AddNumbers(), 0.0, scratch);
  if (threadIdx.x != 0) return;
  out[0] = static_cast<float>(terms.factor * loss);
  out[1] = terms.auxiliary ? 0.0f : static_cast<float>(weights);
  out[2] = terms.auxiliary ? 0.0f : static_cast<float>(correct);
}

template <typename T, int kPack, bool kSpreads>
__global__ void LossGradientKernel(const SoftmaxLossCall<T> call, const float* scale_word,
                                   bool sum) {
  using Packed = Pack<T, kPack>;
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  const int32_t target = call.targets[row];
  const RowTerms terms(call, row);
  const bool counts = terms.sample > 0;
  if (!counts && sum) return;
  float weights = 0;
  if (kSpreads) {
    for (int64_t i = threadIdx.x; i < call.width; i += blockDim.x) {
      weights += ClassWeight(call.terms, i);
    }
    weights = BlockReduce(weights, AddNumbers(), 0.0f, scratch);
  }
  const RowSlope<kSpreads> slope(terms, weights, counts ? call.log_sums[row] : 0.0f,
                                 *scale_word * call.terms.factor);
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kPack; column < call.width;
       column += static_cast<int64_t>(blockDim.x) * kPack) {
    Packed result = {};
    if (counts) {
      const auto x = *reinterpret_cast<const Packed*>(call.x + row * call.width + column);
      Packed before = {};
      if (sum) before = *reinterpret_cast<const Packed*>(call.dx + row * call.width + column);
      for (int j = 0; j < kPack; ++j) {
        const float own =
            slope.template At<T>(ToFloat(x.at[j]), column + j == target, column + j, call.terms);
        result.at[j] = FromFloat<T>(ToFloat(before.at[j]) + own);
      }
    } else {
      for (int j = 0; j < kPack; ++j) result.at[j] = FromFloat<T>(0.0f);
    }
    *reinterpret_cast<Packed*>(call.dx + row * call.width + column) = result;
  }
}

// Nothing to do for a scale of 1, as in every run of the engine.
template <typename T, int kPack>
__global__ void ScaleKernel(const float* scale_word, float factor, T* values, int64_t count) {
  using Packed = Pack<T, kPack>;
  const float scale = *scale_word * factor;
  if (scale == 1.0f) return;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count / kPack;
       i += stride) {
    Packed pack = reinterpret_cast<const Packed*>(values)[i];
    for (int j = 0; j < kPack; ++j) pack.at[j] = FromFloat<T>(scale * ToFloat(pack.at[j]));
    reinterpret_cast<Packed*>(values)[i] = pack;
  }
}

// As many threads as there are packs in a row, as far as a block goes.
dim3 ThreadsFor(int64_t width, int64_t pack) {
  const int64_t warps = (width + pack * kWarp - 1) / (pack * kWarp);
  return dim3(static_cast<unsigned>(warps * kWarp < kMaxThreads ? warps * kWarp : kMaxThreads));
}

}  // namespace

template <typename T>
cudaError_t LaunchRowLosses(const SoftmaxLossCall<T>& call, RowLoss* losses, int64_t shared_bytes,
                            DeviceFault* fault, cudaStream_t stream) noexcept {
  if (call.rows == 0) return cudaSuccess;
  const auto start = [&](auto kernel, int64_t pack, int64_t held_bytes) {
    return Launch(kernel, dim3(static_cast<unsigned>(call.rows)), ThreadsFor(call.width, pack),
                  static_cast<size_t>(held_bytes), stream, call, losses, fault);
  };
  constexpr int kPack = kPackSize<T>;
  const bool spreads = call.terms.smoothing > 0;
  if (!IsPacked<T>(call.width, {call.x, call.dx})) {
    return start(spreads ? RowLossKernel<T, 1, false, true> : RowLossKernel<T, 1, false, false>, 1,
                 0);
  }
  if (spreads) return start(RowLossKernel<T, kPack, false, true>, kPack, 0);
  const int64_t row_bytes = call.width * static_cast<int64_t>(sizeof(T));
  const bool holds = call.dx != nullptr && row_bytes <= shared_bytes;
  if (!holds) return start(RowLossKernel<T, kPack, false, false>, kPack, 0);
  return start(RowLossKernel<T, kPack, true, false>, kPack, row_bytes);
}

template <typename T>
cudaError_t LaunchScaleLossGradient(const float* scale, float factor, T* dx, int64_t count,
                                    cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(count, {dx});
  const dim3 grid(StridingBlocksFor(count, (packed ? kPackSize<T> : 1) * kMaxThreads));
  return Launch(packed ? ScaleKernel<T, kPackSize<T>> : ScaleKernel<T, 1>, grid, dim3(kMaxThreads),
                0, stream, scale, factor, dx, count);
}

cudaError_t LaunchSumLosses(const RowLoss* losses, int64_t rows, const LossTerms& terms, float* out,
                            cudaStream_t stream) noexcept {
  return Launch(SumLossesKernel, dim3(1), dim3(kSumThreads), 0, stream, losses, rows, terms, out);
}

template <typename T>
cudaError_t LaunchLossGradient(const SoftmaxLossCall<T>& call, const float* scale, bool sum,
                               cudaStream_t stream) noexcept {
  if (call.rows == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(call.width, {call.x, call.dx});
  constexpr int kPack = kPackSize<T>;
  const auto kernel =
      call.terms.smoothing > 0
          ? (packed ? LossGradientKernel<T, kPack, true> : LossGradientKernel<T, 1, true>)
          : (packed ? LossGradientKernel<T, kPack, false> : LossGradientKernel<T, 1, false>);
  return Launch(kernel, dim3(static_cast<unsigned>(call.rows)),
                ThreadsFor(call.width, packed ? kPack : 1), 0, stream, call, scale, sum);
}

#define CUDA_OPS_INSTANTIATE(T)                                                                    \
  template cudaError_t LaunchRowLosses(const SoftmaxLossCall<T>&, RowLoss*, int64_t, DeviceFault*, \
                                       cudaStream_t) noexcept;                                     \
  template cudaError_t LaunchScaleLossGradient(const float*, float, T*, int64_t,                   \
                                               cudaStream_t) noexcept;                             \
  template cudaError_t LaunchLossGradient(const SoftmaxLossCall<T>&, const float*, bool,           \
                                          cudaStream_t) noexcept;

CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)

}  // namespace engine::cuda_ops
