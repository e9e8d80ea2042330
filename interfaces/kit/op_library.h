// The ops of an op library as a table: a name of each, and what makes it.
#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <string_view>
#include <type_traits>

#include "engine/op.h"
#include "engine/options.h"
#include "engine/plugin.h"
#include "engine/status.h"

// The ops of op_attributes.h and those without attributes, as op(name, Name). "accumulate" is what
// the core adds gradients with.
#define ENGINE_KIT_EACH_OP(op)                                                                     \
  op(linear, Linear) op(tied_linear, TiedLinear) op(layer_norm, LayerNorm) op(rms_norm, RmsNorm)   \
      op(batch_norm, BatchNorm) op(group_norm, GroupNorm) op(dropout, Dropout) op(                 \
          embedding, Embedding) op(attention, Attention) op(scaled_dot_product_attention, Sdpa)    \
          op(rotary_embedding, RotaryEmbedding) op(flatten, Flatten) op(                           \
              to_channels_last, ToChannelsLast) op(to_channels_first, ToChannelsFirst)             \
              op(conv2d, Conv2d) op(conv_transpose2d, ConvTranspose2d) op(max_pool, MaxPool) op(   \
                  avg_pool, AvgPool) op(global_avg_pool, GlobalAvgPool)                            \
                  op(global_max_pool, GlobalMaxPool) op(resize, Resize) op(                        \
                      softmax_cross_entropy, SoftmaxCrossEntropy) op(mean_squared_error,           \
                                                                     MeanSquaredError)             \
                      op(mean_absolute_error, MeanAbsoluteError) op(huber, Huber) op(              \
                          binary_cross_entropy, BinaryCrossEntropy) op(accumulate, Accumulate)     \
                          op(relu, Relu) op(gelu, Gelu) op(gelu_erf, GeluErf) op(tanh, Tanh) op(   \
                              sigmoid, Sigmoid) op(silu, Silu) op(hard_sigmoid, HardSigmoid)       \
                              op(hard_swish, HardSwish) op(leaky_relu, LeakyRelu) op(elu, Elu) op( \
                                  softplus, Softplus) op(mish, Mish) op(clip, Clip)                \
                                  op(scale, Scale) op(exp, Exp) op(log, Log) op(sqrt, Sqrt) op(    \
                                      reciprocal, Reciprocal) op(abs, Abs) op(erf, Erf)            \
                                      op(sin, Sin) op(cos, Cos) op(pow, Pow) op(add, Add) op(      \
                                          subtract, Subtract) op(multiply, Multiply)               \
                                          op(divide, Divide) op(maximum, Maximum) op(              \
                                              minimum, Minimum) op(power, Power)                   \
                                              op(prelu, Prelu) op(where, Where) op(                \
                                                  softmax, Softmax) op(log_softmax, LogSoftmax)    \
                                                  op(matmul, Matmul) op(reduce_sum, ReduceSum)     \
                                                      op(reduce_mean, ReduceMean)                  \
                                                          op(reduce_max, ReduceMax) op(            \
                                                              reshape, Reshape) op(transpose,      \
                                                                                   Transpose)      \
                                                              op(concat, Concat) op(slice, Slice)  \
                                                                  op(pad, Pad) op(expand, Expand)  \
                                                                      op(gather, Gather)
// Of a library whose OpFactory for an op is kMakeName: the declaration of that, and an entry of its
// table.
#define ENGINE_KIT_DECLARE_OP(name, Name) extern const OpFactory kMake##Name;
#define ENGINE_KIT_OP_ENTRY(name, Name) {#name, &kMake##Name},

namespace engine::kit {

// Makes an op of a library that gives each a `Context`; null when memory is out.
template <typename Context>
using OpFactory = Op* (*)(const Context& context, const Options& attributes) noexcept;

// A factory of ops of class T, which may do without attributes.
template <typename T, typename Context>
Op* NewOp(const Context& context, [[maybe_unused]] const Options& attributes) noexcept {
  if constexpr (std::is_constructible_v<T, const Context&, const Options&>) {
    return new (std::nothrow) T(context, attributes);
  } else {
    return new (std::nothrow) T(context);
  }
}

// The table is read without running any code, so it names factories of other files by address.
template <typename Context>
struct OpEntry {
  OpName name;
  const OpFactory<Context>* make;
};

// For the descriptor.
template <typename Context, size_t kCount>
constexpr std::array<OpName, kCount> NamesOf(const OpEntry<Context> (&table)[kCount]) noexcept {
  std::array<OpName, kCount> names;
  for (size_t i = 0; i < kCount; ++i) names[i] = table[i].name;
  return names;
}

// OpLibrary::CreateOp of plugin `library`. The op's name, of static lifetime, is that of `context`.
template <typename Context, size_t kCount>
Status CreateOp(const char* library, const OpEntry<Context> (&table)[kCount], std::string_view name,
                Context context, const Options& attributes, Op** out) noexcept {
  for (const OpEntry<Context>& entry : table) {
    if (entry.name.view() != name) continue;
    context.name = entry.name.text;
    *out = (*entry.make)(context, attributes);
    if (*out != nullptr) return {};
    return Status::Error(StatusCode::kResourceExhausted, "no memory for an op '%s'", context.name);
  }
  return Status::Error(StatusCode::kInvalidArgument, "%s has no op '%.*s'", library,
                       static_cast<int>(name.size()), name.data());
}

}  // namespace engine::kit
