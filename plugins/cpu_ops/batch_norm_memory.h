// How batch_norm lays out the memory that it is given.
#pragma once

#include <cstddef>
#include <cstdint>

#include "channel_kernels.h"
#include "parallel.h"

namespace engine::cpu_ops {

// A double as the sum of two floats, to 48 bits.
struct FloatPair {
  float high, low;

  explicit FloatPair(double value) noexcept
      : high(static_cast<float>(value)),
        low(static_cast<float>(value - static_cast<double>(high))) {}
  FloatPair(float high_part, float low_part) noexcept : high(high_part), low(low_part) {}

  double value() const noexcept { return static_cast<double>(high) + static_cast<double>(low); }
};

inline int64_t PaddedChannels(int64_t channels) noexcept {
  return (channels + kLine - 1) / kLine * kLine;
}

// What Forward leaves for Backward.
struct BatchNormSaved {
  double* count;                          // of values per channel, on all ranks
  float *high, *low, *inverse_deviation;  // of each channel; the mean is high + low

  BatchNormSaved(void* memory, int64_t channels) noexcept
      : count(static_cast<double*>(memory)),
        high(static_cast<float*>(memory) + kLine),
        low(high + PaddedChannels(channels)),
        inverse_deviation(low + PaddedChannels(channels)) {}

  static int64_t Bytes(int64_t channels) noexcept {
    return (kLine + 3 * PaddedChannels(channels)) * static_cast<int64_t>(sizeof(float));
  }
};

// Scratch of one call: three numbers per channel for the pass over elements, and the sums of each
// thread.
class BatchNormWorkspace {
 public:
  BatchNormWorkspace(void* memory, int64_t channels) noexcept
      : channels_(PaddedChannels(channels)), memory_(static_cast<std::byte*>(memory)) {}

  static int64_t Bytes(int64_t channels, int32_t threads) noexcept {
    return PaddedChannels(channels) * (kCoefficientBytes + threads * kSumBytes);
  }

  float* coefficient(int32_t index) const noexcept {
    return reinterpret_cast<float*>(memory_) + index * channels_;
  }
  ChannelSums sums(int32_t part) const noexcept {
    auto* doubles =
        reinterpret_cast<double*>(memory_ + channels_ * (kCoefficientBytes + part * kSumBytes));
    return {doubles, doubles + channels_, reinterpret_cast<float*>(doubles + 2 * channels_)};
  }

 private:
  static constexpr int64_t kCoefficientBytes = 3 * sizeof(float);
  static constexpr int64_t kSumBytes = 2 * sizeof(double) + 3 * sizeof(float);

  const int64_t channels_;
  std::byte* const memory_;
};

}  // namespace engine::cpu_ops
