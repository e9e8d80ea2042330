#include "select.h"

#include <algorithm>
#include <cstring>

#include "kit/target_clones.h"

namespace engine::topk {
namespace {

constexpr int64_t kBlock = 32;    // looked at together: most blocks hold nothing that is selected
constexpr int64_t kChunk = 4096;  // stays in the first-level cache between two loops over it

inline uint32_t MagnitudeOf(float x) noexcept {
  return __builtin_bit_cast(uint32_t, x) & 0x7fffffff;
}

ENGINE_TARGET_CLONES void Add(const float* __restrict__ added, float scale, float* __restrict__ sum,
                              int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) sum[i] += scale * added[i];
}

// ++bins[(m - lowest) >> shift] for every magnitude m in [lowest, highest].
ENGINE_TARGET_CLONES void CountWithin(const float* data, int64_t count, uint32_t lowest,
                                      uint32_t highest, int shift, uint32_t* bins) noexcept {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const float* const block = data + begin;
    uint32_t largest = 0;
    for (int64_t i = 0; i < length; ++i) largest = std::max(largest, MagnitudeOf(block[i]));
    if (largest < lowest) continue;
    for (int64_t i = 0; i < length; ++i) {
      const uint32_t magnitude = MagnitudeOf(block[i]);
      if (magnitude >= lowest && magnitude <= highest) ++bins[(magnitude - lowest) >> shift];
    }
  }
}

// The bin that holds the `*kept` largest, counted from the last one down; *kept becomes how many of
// them are in that bin.
uint32_t BinOf(const uint32_t* bins, int32_t bin_count, int64_t* kept) noexcept {
  int32_t bin = bin_count - 1;
  for (; bin > 0 && bins[bin] < *kept; --bin) *kept -= bins[bin];
  return static_cast<uint32_t>(bin);
}

}  // namespace

Threshold Selector::AddAndFind(const float* added, float scale, float* sum, int64_t count,
                               int64_t kept) noexcept {
  std::memset(first_, 0, sizeof(first_));
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t length = std::min(kChunk, count - begin);
    float* const chunk = sum + begin;
    Add(added + begin, scale, chunk, length);
    int64_t i = 0;
    for (; i + kTables <= length; i += kTables) {
      for (int32_t t = 0; t < kTables; ++t) ++first_[t][MagnitudeOf(chunk[i + t]) >> 20];
    }
    for (; i < length; ++i) ++first_[0][MagnitudeOf(chunk[i]) >> 20];
  }
  for (int32_t t = 1; t < kTables; ++t) {
    for (int32_t b = 0; b < kFirstBins; ++b) first_[0][b] += first_[t][b];
  }
  uint32_t magnitude = BinOf(first_[0], kFirstBins, &kept) << 20;
  for (const int shift : {10, 0}) {
    std::memset(next_, 0, sizeof(next_));
    const uint32_t highest = magnitude | ((1u << (shift + 10)) - 1);
    CountWithin(sum, count, magnitude, highest, shift, next_);
    magnitude |= BinOf(next_, kNextBins, &kept) << shift;
  }
  return {.magnitude = magnitude, .ties = kept};
}

ENGINE_TARGET_CLONES void TakeOut(const Threshold& threshold, float* sum, int64_t count,
                                  uint32_t* indices, float* values) noexcept {
  const uint32_t lowest = threshold.magnitude;
  int64_t ties = threshold.ties;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    float* const block = sum + begin;
    uint32_t largest = 0;
    for (int64_t i = 0; i < length; ++i) largest = std::max(largest, MagnitudeOf(block[i]));
    if (largest < lowest) continue;
    for (int64_t i = 0; i < length; ++i) {
      const uint32_t magnitude = MagnitudeOf(block[i]);
      if (magnitude < lowest || (magnitude == lowest && ties-- <= 0)) continue;
      *indices++ = static_cast<uint32_t>(begin + i);
      *values++ = block[i];
      block[i] = 0;
    }
  }
}

}  // namespace engine::topk
