#include "kernels/dropout.h"
#include "kernels/fingerprint.h"
#include "kernels/launch.h"
#include "kernels/reduce.h"

namespace engine::cuda_ops {
namespace {

constexpr int kThreads = 256;

struct AddWords {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a + b; }
};

// A sum of integers is the same in every order.
template <typename Word>
__global__ void FingerprintKernel(const Word* words, int64_t count, uint64_t* parts) {
  __shared__ uint64_t scratch[kWarp];
  uint64_t sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    sum += Mix(Mix(static_cast<uint64_t>(i)) ^ words[i]);
  }
  sum = BlockReduce(sum, AddWords(), uint64_t{0}, scratch);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <typename Word>
cudaError_t LaunchOn(const void* data, int64_t size_bytes, uint64_t* parts,
                     cudaStream_t stream) noexcept {
  const int64_t count = size_bytes / static_cast<int64_t>(sizeof(Word));
  const unsigned wanted = BlocksFor(count, kThreads);
  return Launch(FingerprintKernel<Word>,
                dim3(wanted < kFingerprintParts ? wanted : kFingerprintParts), dim3(kThreads), 0,
                stream, static_cast<const Word*>(data), count, parts);
}

}  // namespace

cudaError_t LaunchFingerprint(const void* data, int64_t size_bytes, uint64_t* parts,
                              cudaStream_t stream) noexcept {
  return size_bytes % 8 == 0 && reinterpret_cast<uintptr_t>(data) % 8 == 0
             ? LaunchOn<uint64_t>(data, size_bytes, parts, stream)
             : LaunchOn<uint16_t>(data, size_bytes, parts, stream);
}

}  // namespace engine::cuda_ops
