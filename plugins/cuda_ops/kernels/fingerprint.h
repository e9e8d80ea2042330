// Whether two results have the same bits, without keeping both.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

constexpr int kFingerprintParts = 512;

// parts[0 .. kFingerprintParts), zeros before, become a function of the bytes of `data` and of
// their order; other bytes give, but for one in 2^64 cases, other parts. `size_bytes` is even.
cudaError_t LaunchFingerprint(const void* data, int64_t size_bytes, uint64_t* parts,
                              cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
