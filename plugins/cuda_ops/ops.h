// The makers of the ops, one per op name, and what several ops share. A maker returns null when
// memory is out.
#pragma once

#include "cuda_op.h"
#include "engine/options.h"

namespace engine::cuda_ops {

using OpFactory = Op* (*)(const OpContext& context, const Options& attributes) noexcept;

// For an op whose input gradient equals its output gradient: copies or adds `source` to `target`,
// or does nothing when they are the same memory. Both are activations.
Status PassGradient(const TensorView& source, const TensorView& target, bool sum,
                    cudaStream_t stream) noexcept;

Op* MakeAdd(const OpContext& context, const Options& attributes) noexcept;
Op* MakeAddLayerNorm(const OpContext& context, const Options& attributes) noexcept;
Op* MakeAttention(const OpContext& context, const Options& attributes) noexcept;
Op* MakeAvgPool(const OpContext& context, const Options& attributes) noexcept;
Op* MakeBatchNorm(const OpContext& context, const Options& attributes) noexcept;
Op* MakeConv2d(const OpContext& context, const Options& attributes) noexcept;
Op* MakeDropout(const OpContext& context, const Options& attributes) noexcept;
Op* MakeEmbedding(const OpContext& context, const Options& attributes) noexcept;
Op* MakeFlatten(const OpContext& context, const Options& attributes) noexcept;
Op* MakeGelu(const OpContext& context, const Options& attributes) noexcept;
Op* MakeGlobalAvgPool(const OpContext& context, const Options& attributes) noexcept;
Op* MakeLayerNorm(const OpContext& context, const Options& attributes) noexcept;
Op* MakeLinear(const OpContext& context, const Options& attributes) noexcept;
Op* MakeMaxPool(const OpContext& context, const Options& attributes) noexcept;
Op* MakeMlp(const OpContext& context, const Options& attributes) noexcept;
Op* MakeRelu(const OpContext& context, const Options& attributes) noexcept;
Op* MakeSoftmaxCrossEntropy(const OpContext& context, const Options& attributes) noexcept;
Op* MakeTanh(const OpContext& context, const Options& attributes) noexcept;
Op* MakeTiedLinear(const OpContext& context, const Options& attributes) noexcept;
Op* MakeToChannelsLast(const OpContext& context, const Options& attributes) noexcept;

}  // namespace engine::cuda_ops
