// layer_norm: y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension
// (Ba, Kiros and Hinton, arXiv:1607.06450). add_layer_norm: output 0 is a + b, output 1 the
// layer_norm of that. Saved for backward: mean and 1 / deviation of each row.
#include "kernels/layer_norm.h"

#include <new>
#include <span>

#include "kernels/bias.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

// What both have in common: weight and bias are the inputs `weight` and `weight` + 1.
class NormOp : public CudaOp {
 public:
  NormOp(const OpContext& context, const Options& attributes, int32_t weight) noexcept
      : CudaOp(context),
        epsilon_(static_cast<float>(attributes.Float("epsilon"))),
        weight_(weight) {}

 protected:
  // Memory for rows like those of `x`.
  void Reserve(const Shape& x, OpSignature* signature) const noexcept {
    const int64_t rows = x.Count(0, -1), width = x[-1];
    signature->saved_bytes = rows * static_cast<int64_t>(sizeof(RowStatistics));
    signature->workspace_bytes = 2 * Parts(rows) * width * static_cast<int64_t>(sizeof(float));
  }

  template <typename T>
  LayerNormForward<T> ForwardOf(const OpCall& call, const Shape& shape) const noexcept {
    return {.x = nullptr,
            .addend = nullptr,
            .sum = nullptr,
            .weight = Parameter(call, weight_),
            .bias = Parameter(call, weight_ + 1),
            .y = nullptr,
            .statistics = static_cast<RowStatistics*>(call.saved),
            .rows = shape.Count(0, -1),
            .width = shape[-1],
            .epsilon = epsilon_};
  }

  // `x` is what is normalised, `dx` gets its gradient, or null.
  template <typename T>
  Status BackwardOf(const OpCall& call, const TensorView& x, const TensorView& dy, const T* dsum,
                    T* dx, bool sum, cudaStream_t stream) const noexcept {
    const auto weight = static_cast<size_t>(weight_);
    const bool parameters = WantsGradient(call, weight) || WantsGradient(call, weight + 1);
    const int64_t rows = x.shape.Count(0, -1), width = x.shape[-1];
    if (rows == 0) {
      ENGINE_RETURN_IF_ERROR(ZeroGradient(call, weight_, stream));
      return ZeroGradient(call, weight_ + 1, stream);
    }
    const LayerNormBackward<T> backward = {
        .x = As<const T>(x),
        .weight = Parameter(call, weight_),
        .dy = As<const T>(dy),
        .dsum = dsum,
        .statistics = static_cast<const RowStatistics*>(call.saved),
        .dx = dx,
        .sum = sum,
        .partials = parameters ? static_cast<float*>(call.workspace) : nullptr,
        .rows = rows,
        .width = width,
        .parts = Parts(rows)};
    ENGINE_RETURN_IF_ERROR(Launched(LaunchLayerNormGradient(backward, stream), "backward"));
    for (int32_t i = 0; i < 2; ++i) {
      ENGINE_RETURN_IF_ERROR(AddParts(call, i, backward.parts, stream));
    }
    return {};
  }

 private:
  static const float* Parameter(const OpCall& call, int32_t input) noexcept {
    return call.inputs[static_cast<size_t>(input)].f32();
  }
  int64_t Parts(int64_t rows) const noexcept {
    return LayerNormParts(rows, device().multiprocessors());
  }

  // Of the weight (0) or the bias (1), whose partial sums alternate.
  Status AddParts(const OpCall& call, int32_t which, int64_t parts,
                  cudaStream_t stream) const noexcept {
    const int32_t input = weight_ + which;
    if (!WantsGradient(call, static_cast<size_t>(input))) return {};
    const TensorView& gradient = call.input_grads[static_cast<size_t>(input)];
    const int64_t width = gradient.count();
    return Launched(
        LaunchAddParts(static_cast<const float*>(call.workspace) + which * width, parts, 2 * width,
                       width, gradient.f32(), Accumulates(call, input), stream),
        "backward");
  }

  const float epsilon_;
  const int32_t weight_;
};

class LayerNormOp final : public NormOp {
 public:
  LayerNormOp(const OpContext& context, const Options& attributes) noexcept
      : NormOp(context, attributes, 1) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferLayerNorm(Inferring(inputs, signature)));
    Reserve(inputs[kX].shape, signature);
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      auto forward = ForwardOf<T>(call, call.inputs[kX].shape);
      forward.x = As<const T>(call.inputs[kX]);
      forward.y = As<T>(call.outputs[0]);
      return Launched(LaunchLayerNorm(forward, stream), "forward");
    });
  }

  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      T* const dx = WantsGradient(call, kX) ? As<T>(call.input_grads[kX]) : nullptr;
      return BackwardOf<T>(call, call.inputs[kX], call.output_grads[0], nullptr, dx,
                           Accumulates(call, kX), stream);
    });
  }

 private:
  static constexpr int32_t kX = 0;
};

class AddLayerNormOp final : public NormOp {
 public:
  AddLayerNormOp(const OpContext& context, const Options& attributes) noexcept
      : NormOp(context, attributes, 2) {}

  Status Infer(std::span<const TensorSpec> inputs, OpSignature* signature) noexcept override {
    ENGINE_RETURN_IF_ERROR(kit::InferAddLayerNorm(Inferring(inputs, signature)));
    Reserve(inputs[kA].shape, signature);
    return {};
  }

 protected:
  Status DoForward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(), [&](auto element) {
      using T = decltype(element);
      auto forward = ForwardOf<T>(call, call.inputs[kA].shape);
      forward.x = As<const T>(call.inputs[kA]);
      forward.addend = As<const T>(call.inputs[kB]);
      forward.sum = As<T>(call.outputs[kSum]);
      forward.y = As<T>(call.outputs[kY]);
      return Launched(LaunchLayerNorm(forward, stream), "forward");
    });
  }

  // Both inputs have the same gradient: one is computed, the other copied, unless they share their
  // memory.
  Status DoBackward(const OpCall& call, cudaStream_t stream) noexcept override {
    return WithElement(activation(),
                       [&](auto element) { return BackwardAs<decltype(element)>(call, stream); });
  }

 private:
  static constexpr int32_t kA = 0, kB = 1, kWeight = 2, kSum = 0, kY = 1;

  template <typename T>
  Status BackwardAs(const OpCall& call, cudaStream_t stream) noexcept {
    // Only the sum was of use: its gradient is what its inputs get.
    if (call.output_grads[kY].data == nullptr) return PassSum(call, stream);
    const int32_t first = FirstTarget(call);
    ENGINE_RETURN_IF_ERROR(BackwardInto<T>(call, first, stream));
    if (first < 0 || !WantsGradient(call, static_cast<size_t>(1 - first))) return {};
    const TensorView& from = call.input_grads[static_cast<size_t>(first)];
    const TensorView& to = call.input_grads[static_cast<size_t>(1 - first)];
    if (!Accumulates(call, first) || from.data == to.data) {
      return PassGradient(from, to, Accumulates(call, 1 - first), stream);
    }
    // Both are added to something: once more, without the parameters, which have theirs.
    OpCall again = call;
    again.input_grads = call.input_grads.first(kWeight);
    return BackwardInto<T>(again, 1 - first, stream);
  }

  // An input that wants a gradient, rather one whose gradient is written, not added to; or -1.
  static int32_t FirstTarget(const OpCall& call) noexcept {
    const bool a = WantsGradient(call, kA), b = WantsGradient(call, kB);
    if (a && b) return Accumulates(call, kA) ? kB : kA;
    return a ? kA : (b ? kB : -1);
  }

  // The gradients of the parameters and of `input`, if that is not -1.
  template <typename T>
  Status BackwardInto(const OpCall& call, int32_t input, cudaStream_t stream) noexcept {
    T* const dx = input < 0 ? nullptr : As<T>(call.input_grads[static_cast<size_t>(input)]);
    return BackwardOf<T>(call, call.outputs[kSum], call.output_grads[kY],
                         As<const T>(call.output_grads[kSum]), dx,
                         input >= 0 && Accumulates(call, input), stream);
  }

  static Status PassSum(const OpCall& call, cudaStream_t stream) noexcept {
    for (int32_t input : {kA, kB}) {
      if (!WantsGradient(call, static_cast<size_t>(input))) continue;
      ENGINE_RETURN_IF_ERROR(PassGradient(call.output_grads[kSum],
                                          call.input_grads[static_cast<size_t>(input)],
                                          Accumulates(call, input), stream));
    }
    ENGINE_RETURN_IF_ERROR(ZeroGradient(call, kWeight, stream));
    return ZeroGradient(call, kWeight + 1, stream);
  }
};

}  // namespace

Op* MakeLayerNorm(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) LayerNormOp(context, attributes);
}

Op* MakeAddLayerNorm(const OpContext& context, const Options& attributes) noexcept {
  return new (std::nothrow) AddLayerNormOp(context, attributes);
}

}  // namespace engine::cuda_ops
