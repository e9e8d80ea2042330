// A convolution with all that its passes need, whatever its groups and the layout of its weight:
// (KH, KW, C / groups, O), or, oihw, as in PyTorch, (O, C / groups, KH, KW), which is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "conv_pass.h"
#include "depthwise.h"
#include "winograd.h"

namespace engine::cpu_ops {

class Convolution {
 public:
  Convolution() = default;
  // For calls with at most so many samples.
  Convolution(const ConvGeometry& geometry, bool oihw, int32_t threads, int64_t samples);

  size_t workspace_bytes() const noexcept;
  // y from x, or dx from dy.
  void Run(ConvPass::Direction direction, ConvPass::Call call) const noexcept;
  void AddWeights(ConvWeightPass::Call call) const noexcept;

 private:
  bool is_depthwise() const noexcept { return conv_.inputs() == 1 && conv_.outputs() == 1; }
  // The floats that a copy of the weight takes, in whole lines.
  int64_t copy_floats() const noexcept { return oihw_ ? (conv_.weights() + 15) / 16 * 16 : 0; }
  enum class To { kHwio, kOihw };
  void Copy(To layout, const float* source, float* target) const noexcept;

  ConvGeometry conv_;
  bool oihw_ = false;
  int32_t threads_ = 1;
  int64_t samples_ = 0;
  ConvPass forward_, backward_;
  ConvWeightPass weights_;
  std::optional<Winograd> winograd_;
  DepthwisePass depthwise_forward_, depthwise_backward_;
};

}  // namespace engine::cpu_ops
