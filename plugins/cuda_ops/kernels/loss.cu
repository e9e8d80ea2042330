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

__device__ bool IsClass(int32_t target, int64_t width) {
  return target >= 0 && target < width;
}

// What a thread, and then the block, knows of a row.
struct RowScan {
  ExponentialSum sum;
  float beaten = 0;  // 1: the target is not the first of the largest

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

  __device__ void Combine(float* scratch) {
    const float largest = BlockReduce(sum.largest, MaxFloats(), -INFINITY, scratch);
    sum.Raise(largest);
    sum.factor = BlockReduce(sum.factor, AddNumbers(), 0.0f, scratch);
    beaten = BlockReduce(beaten, MaxFloats(), 0.0f, scratch);
  }
};

__device__ float LogSumOf(const RowScan& scan) {
  return scan.sum.largest + logf(scan.sum.factor);
}

// The loss of a row whose target is a class, from what its block has seen. Not log_sum - target_x,
// which would cancel.
__device__ RowLoss LossOf(const RowScan& scan, float target_x) {
  const bool correct = scan.beaten == 0 && target_x == target_x;  // not a NaN
  return {(scan.sum.largest - target_x) + logf(scan.sum.factor), correct ? 2.0f : 1.0f};
}

// Whether the row's target is a class. One that should be and is not is reported.
__device__ bool CheckTarget(int32_t target, int64_t row, int64_t width, RowLoss* losses,
                            DeviceFault* fault) {
  if (IsClass(target, width)) return true;
  if (threadIdx.x == 0) {
    losses[row] = {0, 0};
    if (target != kIgnoredTarget) {
      ReportFault(fault, DeviceFault::kTarget, target, row, static_cast<int32_t>(width));
    }
  }
  return false;
}

// A thread has the same packs in both passes, so what it keeps is for itself. `dx` is null or may
// be `logits`.
template <typename T, int kPack, bool kHold>
__global__ void RowLossKernel(const T* logits, T* dx, const int32_t* targets, int64_t width,
                              RowLoss* losses, float* log_sums, DeviceFault* fault) {
  using Packed = Pack<T, kPack>;
  __shared__ float scratch[kWarp];
  Packed* const held = kHold ? reinterpret_cast<Packed*>(DynamicShared()) : nullptr;
  const int64_t row = blockIdx.x;
  const int32_t target = targets[row];
  const auto* const packs = reinterpret_cast<const Packed*>(logits + row * width);
  auto* const slopes = reinterpret_cast<Packed*>(dx + row * width);
  const int count = static_cast<int>(width / kPack), threads = static_cast<int>(blockDim.x);
  if (!CheckTarget(target, row, width, losses, fault)) {
    Packed zeros;
    for (int j = 0; j < kPack; ++j) zeros.at[j] = FromFloat<T>(0.0f);
    for (int i = static_cast<int>(threadIdx.x); dx != nullptr && i < count; i += threads) {
      slopes[i] = zeros;
    }
    return;
  }
  const float target_x = ToFloat(logits[row * width + target]);
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
      if (kHold) held[i] = x[b];
    }
  }
  scan.Combine(scratch);  // all threads have read target_x behind this
  const float log_sum = LogSumOf(scan);
  if (threadIdx.x == 0) {
    losses[row] = LossOf(scan, target_x);
    if (log_sums != nullptr) log_sums[row] = log_sum;
  }
  for (int i = static_cast<int>(threadIdx.x); dx != nullptr && i < count; i += threads) {
    Packed x = kHold ? held[i] : packs[i];
    for (int j = 0; j < kPack; ++j) {
      x.at[j] = FromFloat<T>(LossSlope<T>(ToFloat(x.at[j]), log_sum, i * kPack + j == target));
    }
    slopes[i] = x;
  }
}

__global__ void SumLossesKernel(const RowLoss* losses, int64_t rows, float* out) {
  __shared__ double scratch[kWarp];
  double loss = 0, targets = 0, correct = 0;
  for (int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    const RowLoss own = losses[row];
    loss += own.loss;
    targets += own.tally > 0 ? 1 : 0;
    correct += own.tally > 1 ? 1 : 0;
  }
  loss = BlockReduce(loss, AddNumbers(), 0.0, scratch);
  targets = BlockReduce(targets, AddNumbers(), 0.0, scratch);
  correct = BlockReduce(correct, AddNumbers(), 0.0, scratch);
  if (threadIdx.x != 0) return;
  out[0] = static_cast<float>(loss);
  out[1] = static_cast<float>(targets);
  out[2] = static_cast<float>(correct);
}

template <typename T, int kPack>
__global__ void LossGradientKernel(const T* logits, const int32_t* targets, const float* log_sums,
                                   const float* scale_word, int64_t width, T* gradients, bool sum) {
  using Packed = Pack<T, kPack>;
  const int64_t row = blockIdx.x;
  const int32_t target = targets[row];
  const bool counts = IsClass(target, width);
  if (!counts && sum) return;
  const float scale = *scale_word;
  const float log_sum = counts ? log_sums[row] : 0.0f;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kPack; column < width;
       column += static_cast<int64_t>(blockDim.x) * kPack) {
    Packed result = {};
    if (counts) {
      const auto x = *reinterpret_cast<const Packed*>(logits + row * width + column);
      Packed before = {};
      if (sum) before = *reinterpret_cast<const Packed*>(gradients + row * width + column);
      for (int j = 0; j < kPack; ++j) {
        const float own = scale * LossSlope<T>(ToFloat(x.at[j]), log_sum, column + j == target);
        result.at[j] = FromFloat<T>(ToFloat(before.at[j]) + own);
      }
    } else {
      for (int j = 0; j < kPack; ++j) result.at[j] = FromFloat<T>(0.0f);
    }
    *reinterpret_cast<Packed*>(gradients + row * width + column) = result;
  }
}

// Nothing to do for a scale of 1, as in every run of the engine.
template <typename T, int kPack>
__global__ void ScaleKernel(const float* scale_word, T* values, int64_t count) {
  using Packed = Pack<T, kPack>;
  const float scale = *scale_word;
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
cudaError_t LaunchRowLosses(const T* x, const int32_t* targets, int64_t rows, int64_t width,
                            RowLoss* losses, float* log_sums, T* dx, int64_t shared_bytes,
                            DeviceFault* fault, cudaStream_t stream) noexcept {
  if (rows == 0) return cudaSuccess;
  const auto start = [&](auto kernel, int64_t pack, int64_t held_bytes) {
    return Launch(kernel, dim3(static_cast<unsigned>(rows)), ThreadsFor(width, pack),
                  static_cast<size_t>(held_bytes), stream, x, dx, targets, width, losses, log_sums,
                  fault);
  };
  if (!IsPacked<T>(width, {x, dx})) return start(RowLossKernel<T, 1, false>, 1, 0);
  constexpr int kPack = kPackSize<T>;
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(T));
  const bool holds = dx != nullptr && row_bytes <= shared_bytes;
  if (!holds) return start(RowLossKernel<T, kPack, false>, kPack, 0);
  return start(RowLossKernel<T, kPack, true>, kPack, row_bytes);
}

template <typename T>
cudaError_t LaunchScaleLossGradient(const float* scale, T* dx, int64_t count,
                                    cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(count, {dx});
  const dim3 grid(StridingBlocksFor(count, (packed ? kPackSize<T> : 1) * kMaxThreads));
  return Launch(packed ? ScaleKernel<T, kPackSize<T>> : ScaleKernel<T, 1>, grid, dim3(kMaxThreads),
                0, stream, scale, dx, count);
}

cudaError_t LaunchSumLosses(const RowLoss* losses, int64_t rows, float* out,
                            cudaStream_t stream) noexcept {
  return Launch(SumLossesKernel, dim3(1), dim3(kSumThreads), 0, stream, losses, rows, out);
}

template <typename T>
cudaError_t LaunchLossGradient(const T* x, const int32_t* targets, const float* log_sums,
                               const float* scale, int64_t rows, int64_t width, T* dx, bool sum,
                               cudaStream_t stream) noexcept {
  if (rows == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(width, {x, dx});
  const auto kernel = packed ? LossGradientKernel<T, kPackSize<T>> : LossGradientKernel<T, 1>;
  return Launch(kernel, dim3(static_cast<unsigned>(rows)),
                ThreadsFor(width, packed ? kPackSize<T> : 1), 0, stream, x, targets, log_sums,
                scale, width, dx, sum);
}

#define CUDA_OPS_INSTANTIATE(T)                                                                   \
  template cudaError_t LaunchRowLosses(const T*, const int32_t*, int64_t, int64_t, RowLoss*,      \
                                       float*, T*, int64_t, DeviceFault*, cudaStream_t) noexcept; \
  template cudaError_t LaunchScaleLossGradient(const float*, T*, int64_t, cudaStream_t) noexcept; \
  template cudaError_t LaunchLossGradient(const T*, const int32_t*, const float*, const float*,   \
                                          int64_t, int64_t, T*, bool, cudaStream_t) noexcept;

CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)

}  // namespace engine::cuda_ops
