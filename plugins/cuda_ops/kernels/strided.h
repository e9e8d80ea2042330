// Functions of tensors that are repeated, permuted or cut on the way: every element of an index
// space has a place in each of them, by a stride for each axis. Broadcasting, transposition,
// slices, concatenation and reductions are of this kind.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace engine::cuda_ops {

constexpr int32_t kMaxAxes = 6;

// Of the elements a, b, c of up to three tensors and the number p. Slopes are those of an op of a
// and b times the gradient c.
enum class MapFunction : int32_t {
  kScale,  // p a
  kThird,  // p c: the slope of a sum
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMaximum,
  kMinimum,
  kPower,       // a^b
  kPrelu,       // a, or b a where a is negative
  kWhere,       // b where a is not 0, else c
  kWhereSlope,  // c where a is not 0, else 0
  kWhereSlopeOther,
  kTimesThird,  // b c: the slope of a b for a
  kFirstTimesThird,
  kOverSecond,  // c / b: the slope of a / b for a
  kQuotientSlope,
  kMaximumSlope,  // c where a is larger, half of it where both are the same
  kMaximumSlopeSecond,
  kMinimumSlope,
  kMinimumSlopeSecond,
  kPowerSlope,
  kPowerSlopeExponent,
  kPreluSlope,
  kPreluSlopeSecond,
  kEqual,       // 1 where a is b, else 0
  kWhereEqual,  // c where a is b, else 0
};

// `data` is of float, or of __nv_bfloat16. Strides are in elements; 0 on an axis that repeats it.
struct StridedTensor {
  void* data = nullptr;
  bool bf16 = false;
  int64_t strides[kMaxAxes] = {};
};

struct StridedMap {
  MapFunction function = MapFunction::kScale;
  float p = 1;
  int32_t axes = 0;
  int64_t extents[kMaxAxes] = {};
  StridedTensor in[3];  // a, b, c; null where the function has no use for it
  // Becomes, or has added when `sum`, the values. On axes that it repeats they are combined: added
  // up, or the largest is taken.
  StridedTensor out;
  bool sum = false;
  bool largest = false;
};

// Of the scratch of any map that combines values.
constexpr int64_t kStridedScratchBytes = int64_t{1} << 19;

// Combines in one order. `scratch`: kStridedScratchBytes, or null where nothing is combined.
cudaError_t LaunchStrided(const StridedMap& map, void* scratch, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
