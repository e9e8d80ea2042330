// How the taps of a convolution's window meet one axis of the tensors. An axis is planned once; a
// plane of rows and columns is the product of two plans.
#pragma once

#include <cstdint>
#include <vector>

#include "kit/plane_window.h"

namespace engine::cpu_ops {

using kit::Window;

// The targets first, first + step, ... (`count` of them), which all meet the same taps: those that
// AxisPlan::taps lists from `tap_first` on, `tap_count` of them. The i-th target meets sources
// through them that are AxisPlan::tap_step apart, from source_first + i * source_step on. Without
// taps it meets none.
struct AxisRun {
  int64_t first = 0, step = 1, count = 0;
  int64_t tap_first = 0, tap_count = 0;
  int64_t source_first = 0, source_step = 0;
};

struct AxisPlan {
  std::vector<int64_t> taps;  // every tap once, in the order in which weights are packed
  std::vector<AxisRun> runs;  // every target is in exactly one
  int64_t tap_step = 1;

  int64_t size() const noexcept { return static_cast<int64_t>(taps.size()); }
  // Whether any target meets the tap at `index` of `taps`.
  bool Meets(int64_t index) const noexcept;
};

// Outputs as targets, inputs as sources: output o meets input o * stride - before + t * dilation
// through tap t.
AxisPlan ForwardAxis(const Window& window, int64_t inputs, int64_t outputs);

// Inputs as targets, outputs as sources. Taps whose places differ by a multiple of the stride are
// beside each other, descending: the outputs that an input meets through them are as far apart
// everywhere.
AxisPlan BackwardAxis(const Window& window, int64_t inputs, int64_t outputs);

}  // namespace engine::cpu_ops
