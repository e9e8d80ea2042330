// 3x3 convolutions without strides in a quarter of the multiplications: Winograd's F(4x4, 3x3)
// (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2015). A tile of 4x4 outputs
// comes from 6x6 inputs: both sides are transformed, multiplied as 36 matrices of (tiles, channels)
// and (channels, outputs), and transformed back. Errors are four to five times those of the plain sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "conv_pass.h"

namespace engine::cpu_ops {

class Winograd {
 public:
  // For calls with at most so many samples.
  Winograd(const ConvGeometry& geometry, int64_t samples);

  // Whether it is faster than ConvPass and ConvWeightPass, which it stands for.
  static bool Pays(const ConvGeometry& geometry, int64_t samples);

  size_t workspace_bytes() const noexcept;
  void Run(ConvPass::Direction direction, const ConvPass::Call& call) const noexcept;
  // Sums do not depend on the number of threads.
  void AddWeights(const ConvWeightPass::Call& call) const noexcept;

 private:
  // Parts of a workspace: transformed weights or their gradients, weights with inputs and outputs in
  // each other's place, and the two sides of a block of tiles.
  struct Workspace {
    float *weights, *swapped, *inputs, *outputs;
  };

  Workspace Divide(void* workspace) const noexcept;

  ConvGeometry conv_;
  int64_t block_;  // tiles that are taken together
};

}  // namespace engine::cpu_ops
