// What makes the ops, and what several of them share.
#pragma once

#include "cpu_op.h"
#include "kit/op_library.h"

namespace engine::cpu_ops {

using OpFactory = kit::OpFactory<OpContext>;

// For an op whose input gradient equals its output gradient: copies or adds `source` to `target`,
// or does nothing when they are the same memory.
void PassGradient(const TensorView& source, const TensorView& target, bool sum) noexcept;

extern const OpFactory kMakeAdd, kMakeAttention, kMakeAvgPool, kMakeBatchNorm, kMakeConv2d,
    kMakeDropout, kMakeEmbedding, kMakeFlatten, kMakeGelu, kMakeGlobalAvgPool, kMakeLayerNorm,
    kMakeLinear, kMakeMaxPool, kMakeRelu, kMakeSoftmaxCrossEntropy, kMakeTanh, kMakeTiedLinear,
    kMakeToChannelsLast;

}  // namespace engine::cpu_ops
