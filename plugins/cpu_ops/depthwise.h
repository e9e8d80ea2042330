// The passes of a depthwise convolution, where every channel is a group of its own: x (B, H, W, C),
// weight (KH, KW, C) and y (B, H', W', C). Nothing is multiplied across channels, so lanes are
// channels, and nothing is packed.
#pragma once

#include <cstdint>
#include <vector>

#include "conv_pass.h"

namespace engine::cpu_ops {

// y from x, or dx from dy, as ConvPass. Needs no workspace.
class DepthwisePass {
 public:
  DepthwisePass() = default;
  DepthwisePass(ConvPass::Direction direction, const ConvGeometry& geometry);

  void Run(const ConvPass::Call& call, int32_t threads) const noexcept;

 private:
  Plane source_, target_;
  AxisPlan columns_;
  std::vector<AxisRun> rows_;  // of each row of targets
  std::vector<int64_t> taps_;  // where the weights of a pair of taps of the plans are
  int64_t row_step_ = 1;
};

// dweight (KH, KW, C) (+)= the sum over all positions of x and dy. Needs no workspace.
void AddDepthwiseWeights(const ConvGeometry& geometry, const ConvWeightPass::Call& call,
                         int32_t threads) noexcept;

}  // namespace engine::cpu_ops
