// As op_shapes.h, for the ops of image models. Tensors are channels last.
#pragma once

#include <cmath>
#include <cstdint>

#include "kit/op_shapes.h"

namespace engine::kit {

// A window of `kernel` taps that moves by `stride` over an axis with `padding` zeros at both ends.
struct Window {
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;

  // Positions of the window on an axis of `extent`; 0 if it does not fit.
  int64_t Positions(int64_t extent) const noexcept {
    return extent + 2 * padding < kernel ? 0 : (extent + 2 * padding - kernel) / stride + 1;
  }
  // Of a plane (B, H, W, C).
  bool Fits(const Shape& x) const noexcept {
    return padding < kernel && Positions(x[1]) >= 1 && Positions(x[2]) >= 1;
  }
  Shape Output(const Shape& x, int64_t channels) const noexcept {
    return {x[0], Positions(x[1]), Positions(x[2]), channels};
  }
};

// x (B, ..., C) -> the same; running_mean and running_var (C) are buffers.
inline Status InferBatchNorm(const Inference& op, bool sync) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (!op.IsActivation(0) || x.ndim < 2 || x.Count(1) < 1) {
    return op.ActivationError(0, " (B, ..., C), channels last, at least two dimensions");
  }
  op.AddOutput(x);
  AddNormParameters(op, x[-1]);
  op.AddParameter("running_mean", Shape{x[-1]}, Initializer::kZeros).trained = 0;
  op.AddParameter("running_var", Shape{x[-1]}, Initializer::kOnes).trained = 0;
  op.signature->uses_replicas = sync ? 1 : 0;
  return op.Gradients(0b111, 0b11);
}

// x (B, H, W, C) -> (B, H', W', channels); weight (K, K, C, channels).
struct ConvAttributes {
  int64_t channels;
  Window window;
  bool bias, kaiming;

  explicit ConvAttributes(const Options& attributes) noexcept
      : channels(attributes.Int("channels")),
        window{attributes.Int("kernel"), attributes.Int("stride"), attributes.Int("padding")},
        bias(attributes.Bool("bias")),
        kaiming(attributes.String("init") == "kaiming") {
    if (window.padding < 0) window.padding = window.kernel / 2;
  }
};

inline Status InferConv(const Inference& op, const ConvAttributes& given) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (!op.IsActivation(0) || x.ndim != 4 || x.Count(1) < 1) {
    return op.ActivationError(0, " (B, H, W, C), channels last");
  }
  const int64_t kernel = given.window.kernel;
  if (!given.window.Fits(x)) {
    return Status::Error(
        StatusCode::kConfig,
        "%s: a kernel of %lld with padding %lld does not fit a plane of %lld x %lld; it must be "
        "larger than the padding and not larger than the padded plane",
        op.name, static_cast<long long>(kernel), static_cast<long long>(given.window.padding),
        static_cast<long long>(x[1]), static_cast<long long>(x[2]));
  }
  op.AddOutput(given.window.Output(x, given.channels));
  // Normal with variance 2 / fan-out (He et al., arXiv:1502.01852) is what torchvision's residual
  // nets start from.
  const float kaiming = std::sqrt(2.0f / static_cast<float>(kernel * kernel * given.channels));
  op.AddProduct(Shape{kernel, kernel, x[3], given.channels}, given.channels, given.bias,
                kernel * kernel * x[3], given.kaiming ? kaiming : 0.0f);
  return op.Gradients(given.bias ? 0b111 : 0b11, 0b11);
}

// x (B, H, W, C) -> (B, H', W', C)
inline Window PoolWindow(const Options& attributes) noexcept {
  Window window{attributes.Int("kernel"), attributes.Int("stride"), attributes.Int("padding")};
  if (window.stride == 0) window.stride = window.kernel;
  return window;
}

inline Status InferPool(const Inference& op, const Window& window) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (!op.IsActivation(0) || x.ndim != 4 || x.Count(1) < 1) {
    return op.ActivationError(0, " (B, H, W, C), channels last");
  }
  if (!window.Fits(x)) {
    return op.InputError(0,
                         "a padded plane that is not smaller than the kernel, and a kernel larger "
                         "than the padding");
  }
  op.AddOutput(window.Output(x, x[3]));
  return op.Gradients(1, 0);
}

// x (B, ..., C) -> (B, C)
inline Status InferGlobalAvgPool(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (!op.IsActivation(0) || x.ndim < 3 || x.Count(1) < 1) {
    return op.ActivationError(0, " (B, ..., C), channels last, at least three dimensions");
  }
  op.AddOutput(Shape{x[0], x[-1]});
  return op.Gradients(1, 0);
}

// x (B, C, H, W) -> (B, H, W, C); with one channel a view unless it is rounded.
inline Status InferToChannelsLast(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (!op.IsBatch(0) || x.ndim != 4 || x.Count(1) < 1) {
    return op.ActivationError(0, " (B, C, H, W)");
  }
  op.AddOutput(Shape{x[0], x[2], x[3], x[1]});
  return op.Passes(x[1] == 1 && op.IsActivation(0));
}

}  // namespace engine::kit
