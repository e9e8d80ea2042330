#include "kernels/element.h"
#include "kernels/loss.h"
#include "kernels/packs.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

// Of a prediction x and its target t. Of binary cross entropy, -log(1 - p) is x - log(p), and -log(p)
// is log(1 + exp(-x)), of which exp(-|x|) cannot overflow.
__device__ inline float LossOf(ElementLoss kind, float p, float x, float t) {
  const float d = x - t, distance = fabsf(d);
  if (kind == ElementLoss::kSquared) return d * d;
  if (kind == ElementLoss::kAbsolute) return distance;
  if (kind == ElementLoss::kHuber) return distance <= p ? d * d / 2 : p * (distance - p / 2);
  const float log_p = log1pf(expf(-fabsf(x))) + (x < 0 ? -x : 0.0f);
  return (1 - t) * x + (1 + (p - 1) * t) * log_p;
}

__device__ inline float SlopeOf(ElementLoss kind, float p, float x, float t) {
  const float d = x - t;
  if (kind == ElementLoss::kSquared) return 2 * d;
  if (kind == ElementLoss::kAbsolute) return d > 0 ? 1.0f : (d < 0 ? -1.0f : 0.0f);
  if (kind == ElementLoss::kHuber) return d < -p ? -p : (d > p ? p : d);
  const float e = expf(-fabsf(x)), against = (x < 0 ? 1.0f : e) / (1 + e);
  return (1 - t) - (1 + (p - 1) * t) * against;
}

template <typename T>
__device__ inline float TargetOf(const ElementLossCall<T>& call, int64_t i) {
  return call.integers ? static_cast<float>(static_cast<const int32_t*>(call.targets)[i])
                       : static_cast<const float*>(call.targets)[i];
}

// Reports what is wrong with target `i`.
template <typename T>
__device__ inline bool CheckTarget(const ElementLossCall<T>& call, float weight, int64_t i,
                                   DeviceFault* fault) {
  if (call.integers) {
    const int32_t target = static_cast<const int32_t*>(call.targets)[i];
    if (target != 0 && target != 1) {
      ReportFault(fault, DeviceFault::kTarget, target, i, 2);
      return false;
    }
  }
  return CheckSampleWeight(call.terms, weight, i, fault);
}

// A block has a part of the elements.
template <typename T>
__global__ void LossKernel(const ElementLossCall<T> call, RowLoss* losses, DeviceFault* fault) {
  __shared__ float scratch[kWarp];
  const int64_t begin = int64_t{blockIdx.x} * kElementLossPart;
  const int64_t end = begin + kElementLossPart < call.count ? begin + kElementLossPart : call.count;
  RowLoss own = {0, 0, 0};
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const float weight = SampleWeight(call.terms, i);
    if (!CheckTarget(call, weight, i, fault) || weight == 0) continue;
    const float x = ToFloat(call.x[i]), t = TargetOf(call, i);
    own.loss += weight * LossOf(call.kind, call.p, x, t);
    own.weight += weight;
    if (call.kind == ElementLoss::kBinary && (x > 0) == (t > 0.5f)) own.correct += weight;
  }
  own.loss = BlockReduce(own.loss, AddNumbers(), 0.0f, scratch);
  own.weight = BlockReduce(own.weight, AddNumbers(), 0.0f, scratch);
  own.correct = BlockReduce(own.correct, AddNumbers(), 0.0f, scratch);
  if (threadIdx.x == 0) losses[blockIdx.x] = own;
}

template <typename T>
__global__ void GradientKernel(const ElementLossCall<T> call, const float* scale, T* dx, bool sum,
                               int64_t count) {
  const int64_t i = ThreadIndex();
  if (i >= count) return;
  const float weight = SampleWeight(call.terms, i);
  float slope = 0;
  if (weight > 0) {
    slope = *scale * call.terms.factor * weight *
            SlopeOf(call.kind, call.p, ToFloat(call.x[i]), TargetOf(call, i));
  }
  dx[i] = FromFloat<T>(sum ? ToFloat(dx[i]) + slope : slope);
}

}  // namespace

template <typename T>
cudaError_t LaunchElementLosses(const ElementLossCall<T>& call, RowLoss* losses, DeviceFault* fault,
                                cudaStream_t stream) noexcept {
  if (call.count == 0) return cudaSuccess;
  return Launch(LossKernel<T>, dim3(BlocksFor(call.count, kElementLossPart)), dim3(kThreads), 0,
                stream, call, losses, fault);
}

template <typename T>
cudaError_t LaunchElementLossGradient(const ElementLossCall<T>& call, const float* scale, T* dx,
                                      bool sum, cudaStream_t stream) noexcept {
  return ForEach(call.count, GradientKernel<T>, stream, call, scale, dx, sum);
}

#define CUDA_OPS_INSTANTIATE(T)                                                               \
  template cudaError_t LaunchElementLosses(const ElementLossCall<T>&, RowLoss*, DeviceFault*, \
                                           cudaStream_t) noexcept;                            \
  template cudaError_t LaunchElementLossGradient(const ElementLossCall<T>&, const float*, T*, \
                                                 bool, cudaStream_t) noexcept;
CUDA_OPS_INSTANTIATE(float)
CUDA_OPS_INSTANTIATE(Bf16)
#undef CUDA_OPS_INSTANTIATE

}  // namespace engine::cuda_ops
