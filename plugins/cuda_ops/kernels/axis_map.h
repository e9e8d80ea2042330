// Maps of axes: along an axis, each position of y is a weighted sum of positions of x, the same ones
// for all other positions. Padding, gathering and resizing are of this kind, and so are their
// gradients, of which each element looks for what it went to: nothing is added up in any order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/strided.h"

namespace engine::cuda_ops {

// Device memory. Position i of y is the sum over j in [begins[i], begins[i + 1]) of shares[j] times
// position places[j] of x.
struct AxisTable {
  const int32_t* begins = nullptr;  // null: positions are those of x
  const int32_t* places = nullptr;
  const float* shares = nullptr;
};

struct AxisMap {
  int32_t axes = 0;
  int64_t extents[kMaxAxes] = {};  // of y, which is dense
  int64_t strides[kMaxAxes] = {};  // of x
  AxisTable tables[kMaxAxes];
  float value = 0;   // where nothing of x goes
  bool sum = false;  // added to y
};

// Both are float or __nv_bfloat16.
template <typename From, typename To>
cudaError_t LaunchAxisMap(const AxisMap& map, const From* x, To* y, cudaStream_t stream) noexcept;

}  // namespace engine::cuda_ops
