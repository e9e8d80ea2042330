// What makes the ops, and what several of them share.
#pragma once

#include "cuda_op.h"
#include "kit/op_library.h"

namespace engine::cuda_ops {

using OpFactory = kit::OpFactory<OpContext>;

// For an op whose input gradient equals its output gradient: copies or adds `source` to `target`,
// or does nothing when they are the same memory. Both are activations.
Status PassGradient(const TensorView& source, const TensorView& target, bool sum,
                    cudaStream_t stream) noexcept;

extern const OpFactory kMakeAdd, kMakeAddLayerNorm, kMakeAttention, kMakeAvgPool, kMakeBatchNorm,
    kMakeConv2d, kMakeDropout, kMakeEmbedding, kMakeFlatten, kMakeGelu, kMakeGlobalAvgPool,
    kMakeLayerNorm, kMakeLinear, kMakeMaxPool, kMakeMlp, kMakeRelu, kMakeSoftmaxCrossEntropy,
    kMakeTanh, kMakeTiedLinear, kMakeToChannelsLast;

}  // namespace engine::cuda_ops
