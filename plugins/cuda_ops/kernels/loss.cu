// A block has a row. It reads the row once: each thread keeps the sum of the exponentials of what
// it has seen beside the largest of that, so no row has to fit anywhere.
#include "kernels/element.h"
#include "kernels/launch.h"
#include "kernels/loss.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kSumThreads = 1024;

struct AddDoubles {
  __device__ double operator()(double a, double b) const { return a + b; }
};

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
    for (int j = 0; j < kPack; ++j) {
      x[j] = ToFloat(pack.at[j]);
      largest = x[j] > largest ? x[j] : largest;
      if (Beats(x[j], column + j, target_x, target)) beaten = 1;
    }
    sum.Raise(largest);
    for (int j = 0; j < kPack; ++j) sum.factor += ExponentialSum::Relative(x[j], sum.largest);
  }

  __device__ void Combine(float* scratch) {
    const float largest = BlockReduce(sum.largest, MaxFloats(), -INFINITY, scratch);
    sum.Raise(largest);
    sum.factor = BlockReduce(sum.factor, AddFloats(), 0.0f, scratch);
    beaten = BlockReduce(beaten, MaxFloats(), 0.0f, scratch);
  }
};

template <typename T, int kPack>
__global__ void RowLossKernel(const T* logits, const int32_t* targets, int64_t width,
                              RowLoss* losses, float* log_sums, DeviceFault* fault) {
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  const int32_t target = targets[row];
  if (!IsClass(target, width)) {
    if (threadIdx.x == 0) {
      losses[row] = {0, 0};
      if (target != kIgnoredTarget) {
        ReportFault(fault, DeviceFault::kTarget, target, row, static_cast<int32_t>(width));
      }
    }
    return;
  }
  const T* const x = logits + row * width;
  const float target_x = ToFloat(x[target]);
  RowScan scan;
  for (int64_t column = static_cast<int64_t>(threadIdx.x) * kPack; column < width;
       column += static_cast<int64_t>(blockDim.x) * kPack) {
    scan.See(*reinterpret_cast<const Pack<T, kPack>*>(x + column), column, target_x, target);
  }
  scan.Combine(scratch);
  if (threadIdx.x != 0) return;
  const float log_of_factor = logf(scan.sum.factor);
  const bool correct = scan.beaten == 0 && target_x == target_x;  // not a NaN
  // Not log_sum - target_x, which would cancel.
  losses[row] = {(scan.sum.largest - target_x) + log_of_factor, correct ? 2.0f : 1.0f};
  if (log_sums != nullptr) log_sums[row] = scan.sum.largest + log_of_factor;
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
  loss = BlockReduce(loss, AddDoubles(), 0.0, scratch);
  targets = BlockReduce(targets, AddDoubles(), 0.0, scratch);
  correct = BlockReduce(correct, AddDoubles(), 0.0, scratch);
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
        const float probability = expf(ToFloat(x.at[j]) - log_sum);
        const float own = scale * (probability - (column + j == target ? 1.0f : 0.0f));
        result.at[j] = FromFloat<T>(ToFloat(before.at[j]) + own);
      }
    } else {
      for (int j = 0; j < kPack; ++j) result.at[j] = FromFloat<T>(0.0f);
    }
    *reinterpret_cast<Packed*>(gradients + row * width + column) = result;
  }
}

// As many threads as there are packs in a row, as far as a block goes.
dim3 ThreadsFor(int64_t width, int64_t pack) {
  const int64_t warps = (width + pack * kWarp - 1) / (pack * kWarp);
  return dim3(static_cast<unsigned>(warps * kWarp < kMaxThreads ? warps * kWarp : kMaxThreads));
}

template <typename T>
bool IsPacked(int64_t width, const T* x) {
  return width % kPackSize<T> == 0 && IsAligned16(x);
}

}  // namespace

template <typename T>
cudaError_t LaunchRowLosses(const T* x, const int32_t* targets, int64_t rows, int64_t width,
                            RowLoss* losses, float* log_sums, DeviceFault* fault,
                            cudaStream_t stream) noexcept {
  if (rows == 0) return cudaSuccess;
  const bool packed = IsPacked(width, x);
  const auto kernel = packed ? RowLossKernel<T, kPackSize<T>> : RowLossKernel<T, 1>;
  return Launch(kernel, dim3(static_cast<unsigned>(rows)),
                ThreadsFor(width, packed ? kPackSize<T> : 1), 0, stream, x, targets, width, losses,
                log_sums, fault);
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
  const bool packed = IsPacked(width, x) && IsPacked<T>(width, dx);
  const auto kernel = packed ? LossGradientKernel<T, kPackSize<T>> : LossGradientKernel<T, 1>;
  return Launch(kernel, dim3(static_cast<unsigned>(rows)),
                ThreadsFor(width, packed ? kPackSize<T> : 1), 0, stream, x, targets, log_sums,
                scale, width, dx, sum);
}

#define CUDA_OPS_INSTANTIATE(T)                                                                 \
  template cudaError_t LaunchRowLosses(const T*, const int32_t*, int64_t, int64_t, RowLoss*,    \
                                       float*, DeviceFault*, cudaStream_t) noexcept;            \
  template cudaError_t LaunchLossGradient(const T*, const int32_t*, const float*, const float*, \
                                          int64_t, int64_t, T*, bool, cudaStream_t) noexcept;

CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)

}  // namespace engine::cuda_ops
