#include "kernels/dropout.h"
#include "kernels/packs.h"

namespace engine::cuda_ops {
namespace {

// kPack divides `count`.
template <typename T, int kPack>
__global__ void DropoutKernel(const DropoutMask mask, const T* source, T* target, bool sum,
                              int64_t count) {
  using Packed = Pack<T, kPack>;
  __shared__ RandomStream shared_stream;
  if (threadIdx.x == 0) {
    const uint64_t step = mask.step_word != nullptr ? *mask.step_word : mask.step;
    shared_stream = RandomStream::Of(mask.seed, step, mask.node);
  }
  __syncthreads();
  const RandomStream stream = shared_stream;
  const uint64_t first_sample =
      mask.first_sample_word != nullptr ? *mask.first_sample_word : mask.first_sample;
  const uint64_t first_position = first_sample * mask.sample_size;
  const auto apply = [&](uint32_t bits, T x, float before) {
    const float kept = bits >= mask.threshold ? ToFloat(x) * mask.scale : 0.0f;
    return FromFloat<T>(sum ? before + kept : kept);
  };

  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count / kPack;
       i += stride) {
    Packed values = reinterpret_cast<const Packed*>(source)[i], before = {};
    if (sum) before = reinterpret_cast<const Packed*>(target)[i];
    uint64_t position = first_position + static_cast<uint64_t>(i) * kPack;
    uint64_t word = stream.Word(position / 2);
    for (int j = 0; j < kPack; ++j, ++position) {
      if (j > 0 && position % 2 == 0) word = stream.Word(position / 2);
      values.at[j] = apply(RandomStream::Half(word, position), values.at[j], ToFloat(before.at[j]));
    }
    reinterpret_cast<Packed*>(target)[i] = values;
  }
}

}  // namespace

template <typename T>
cudaError_t LaunchDropout(const DropoutMask& mask, const T* source, T* target, bool sum,
                          int64_t count, cudaStream_t stream) noexcept {
  if (count == 0) return cudaSuccess;
  const bool packed = IsPacked<T>(count, {source, target});
  const dim3 grid(StridingBlocksFor(count, (packed ? kPackSize<T> : 1) * kThreads));
  const auto kernel = packed ? DropoutKernel<T, kPackSize<T>> : DropoutKernel<T, 1>;
  return Launch(kernel, grid, dim3(kThreads), 0, stream, mask, source, target, sum, count);
}

template cudaError_t LaunchDropout(const DropoutMask&, const float*, float*, bool, int64_t,
                                   cudaStream_t) noexcept;
template cudaError_t LaunchDropout(const DropoutMask&, const Bf16*, Bf16*, bool, int64_t,
                                   cudaStream_t) noexcept;

}  // namespace engine::cuda_ops
