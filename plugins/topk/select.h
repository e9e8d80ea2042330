// The elements of largest magnitude.
#pragma once

#include <cstdint>

namespace engine::topk {

// The largest `kept` magnitudes of an array: those above `magnitude`, and the first `ties` of those
// equal to it. Magnitudes are the bits of a float32 without its sign, which are ordered as their
// values are; a NaN is larger than infinity.
struct Threshold {
  uint32_t magnitude = 0;
  int64_t ties = 0;
};

// Finds thresholds in three passes, by counting the leading 11, then 10, then 10 bits.
class Selector {
 public:
  // sum[i] += scale * added[i], then the threshold of `sum` for 1 <= kept <= count.
  Threshold AddAndFind(const float* added, float scale, float* sum, int64_t count,
                       int64_t kept) noexcept;

 private:
  static constexpr int32_t kFirstBins = 2048;
  static constexpr int32_t kNextBins = 1024;
  static constexpr int32_t kTables = 4;  // in turn: increments of one number wait for each other

  uint32_t first_[kTables][kFirstBins];
  uint32_t next_[kNextBins];
};

// Moves what `threshold` selects out of `sum`, in ascending order: positions to `indices`, values
// to `values`, and zero in their place.
void TakeOut(const Threshold& threshold, float* sum, int64_t count, uint32_t* indices,
             float* values) noexcept;

}  // namespace engine::topk
