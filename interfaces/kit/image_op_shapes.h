// As op_shapes.h, for the ops of image models. Tensors are channels last.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "kit/op_shapes.h"
#include "kit/plane_window.h"

namespace engine::kit {

// x (B, ..., C) -> the same; running_mean and running_var (C) are buffers.
//
// y = (x - mean) / sqrt(variance + epsilon) * weight + bias, with mean and variance of each
// channel, the last dimension, over everything before it (Ioffe and Szegedy, arXiv:1502.03167).
//
// While training, mean and variance are those of the batch, and
//   running_mean = (1 - momentum) running_mean + momentum mean
//   running_var  = (1 - momentum) running_var  + momentum variance n / (n - 1)
// as in PyTorch; in evaluation they are the running ones. A batch of one value per channel, which
// PyTorch refuses, has variance 0: its y is the bias, and running_var stays as it was. A batch of
// none changes nothing.
//
// With `sync`, the batch is that of all ranks: one gather in Forward, one in Backward. A rank
// without samples takes part.
struct BatchNormRule {
  double momentum, epsilon;
  bool sync;

  explicit BatchNormRule(const Options& attributes) noexcept
      : momentum(attributes.Float("momentum")),
        epsilon(attributes.Float("epsilon")),
        sync(attributes.Bool("sync")) {}

  Status Infer(const Inference& op) const noexcept {
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
};

// Of conv2d and of conv_transpose2d, whose padding is cut off its output.
struct ConvAttributes {
  int64_t channels, groups;
  PlaneWindow window;
  bool bias;

  explicit ConvAttributes(const Options& attributes) noexcept
      : channels(attributes.Int("channels")),
        groups(attributes.Int("groups")),
        window(attributes, true),
        bias(attributes.Bool("bias")) {}

  // kConfig unless x is a plane whose channels have these groups.
  Status Check(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(window.Check(op));
    const int64_t inputs = op.inputs[0].shape[3];
    if (inputs % groups == 0 && channels % groups == 0) return {};
    return Status::Error(StatusCode::kConfig,
                         "%s: %lld groups do not divide the %lld channels of its input and the "
                         "%lld of its output",
                         op.name, static_cast<long long>(groups), static_cast<long long>(inputs),
                         static_cast<long long>(channels));
  }
  // Ends Infer. `y` has no position where a window does not fit.
  Status Finish(const Inference& op, const Shape& y, const Shape& weight, int64_t fan_in,
                float deviation) const noexcept {
    if (y[1] < 1 || y[2] < 1) {
      return op.InputError(0, "a plane that the kernel with its dilation and padding fits");
    }
    op.AddOutput(y);
    op.AddProduct(weight, channels, bias, fan_in, deviation);
    return op.Gradients(bias ? 0b111 : 0b11, 0b11);
  }
};

// x (B, H, W, C) -> (B, H', W', channels); weight (KH, KW, C / groups, channels), or, as in PyTorch,
// (channels, C / groups, KH, KW).
struct Conv2dAttributes : ConvAttributes {
  bool kaiming, oihw;

  explicit Conv2dAttributes(const Options& attributes) noexcept
      : ConvAttributes(attributes),
        kaiming(attributes.String("init") == "kaiming"),
        oihw(attributes.String("layout") == "oihw") {}
};

inline Status InferConv(const Inference& op, const Conv2dAttributes& given) noexcept {
  ENGINE_RETURN_IF_ERROR(given.Check(op));
  const Shape& x = op.inputs[0].shape;
  const int64_t rows = given.window.rows.kernel, columns = given.window.columns.kernel;
  const int64_t inputs = x[3] / given.groups, channels = given.channels;
  // Normal with variance 2 / fan-out (He et al., arXiv:1502.01852) is what torchvision's residual
  // nets start from.
  const float kaiming = std::sqrt(2.0f / static_cast<float>(rows * columns * channels));
  return given.Finish(
      op, given.window.Output(x, channels),
      given.oihw ? Shape{channels, inputs, rows, columns} : Shape{rows, columns, inputs, channels},
      rows * columns * inputs, given.kaiming ? kaiming : 0.0f);
}

// x (B, H, W, C) -> (B, H', W', channels), as the gradient of a convolution with the window goes
// from its output to its input; weight (C, channels / groups, KH, KW) and fan-in are PyTorch's.
struct ConvTransposeAttributes : ConvAttributes {
  int64_t more_rows = 0, more_columns = 0;

  explicit ConvTransposeAttributes(const Options& attributes) noexcept
      : ConvAttributes(attributes) {
    window.Read(attributes, "output_padding", &more_rows, &more_columns);
  }
};

inline Status InferConvTranspose(const Inference& op,
                                 const ConvTransposeAttributes& given) noexcept {
  ENGINE_RETURN_IF_ERROR(given.Check(op));
  const Shape& x = op.inputs[0].shape;
  const auto extent = [](const Window& window, int64_t inputs, int64_t more) {
    return (inputs - 1) * window.stride + window.Reach() - window.before - window.after + more;
  };
  const Window &rows = given.window.rows, &columns = given.window.columns;
  const int64_t units = given.channels / given.groups;
  return given.Finish(op,
                      Shape{x[0], extent(rows, x[1], given.more_rows),
                            extent(columns, x[2], given.more_columns), given.channels},
                      Shape{x[3], units, rows.kernel, columns.kernel}, units * given.window.taps(),
                      0.0f);
}

// x (B, H, W, C) -> (B, H', W', C)
struct PoolAttributes {
  PlaneWindow window;
  bool ceil = false;
  bool count_padding = false;  // of a mean

  PoolAttributes() noexcept = default;
  PoolAttributes(const Options& attributes, bool is_max) noexcept
      : window(attributes, is_max),
        ceil(attributes.Bool("ceil")),
        count_padding(!is_max && attributes.Bool("count_padding")) {}
};

inline Status InferPool(const Inference& op, const PoolAttributes& given) noexcept {
  ENGINE_RETURN_IF_ERROR(given.window.Check(op));
  const Shape& x = op.inputs[0].shape;
  const Shape y = given.window.Output(x, x[3], given.ceil);
  if (y[1] < 1 || y[2] < 1 || !given.window.rows.Meets(y[1], x[1]) ||
      !given.window.columns.Meets(y[2], x[2])) {
    return op.InputError(0,
                         "a padded plane that is not smaller than the kernel, and a kernel larger "
                         "than the padding");
  }
  op.AddOutput(y);
  return op.Gradients(1, 0);
}

// x (B, ..., C) -> (B, C)
inline Status InferGlobalPool(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(op.CheckInputCount(1));
  const Shape& x = op.inputs[0].shape;
  if (!op.IsActivation(0) || x.ndim < 3 || x.Count(1) < 1) {
    return op.ActivationError(0, " (B, ..., C), channels last, at least three dimensions");
  }
  op.AddOutput(Shape{x[0], x[-1]});
  return op.Gradients(1, 0);
}

// x (B, H, W, C) -> (B, H', W', C): each output is the nearest input, or a mean of the nearest two
// of each axis, weighted by their distance.
struct ResizeAttributes {
  int64_t height = 0, width = 0;  // 0: by the scale
  double scale;
  bool bilinear, asymmetric, align_corners;
  bool wrong = false;  // the size

  explicit ResizeAttributes(const Options& attributes) noexcept
      : scale(attributes.Float("scale")),
        bilinear(attributes.String("mode") == "bilinear"),
        asymmetric(attributes.String("coordinates") == "asymmetric"),
        align_corners(attributes.String("coordinates") == "align_corners") {
    const std::span<const int64_t> size = attributes.Ints("size");
    wrong = size.size() > 2;
    if (wrong || size.empty()) return;
    height = size.front();
    width = size.back();
  }

  int64_t Outputs(int64_t given, int64_t inputs) const noexcept {
    return given > 0 ? given : static_cast<int64_t>(static_cast<double>(inputs) * scale);
  }

  // The inputs of an output: low, and high, which is low or the next, with its share. Halves are
  // rounded down, and where coordinates are asymmetric everything is: ONNX's Resize as PyTorch
  // exports it.
  struct Source {
    int64_t low, high;
    float share;
  };
  Source SourceOf(int64_t output, int64_t outputs, int64_t inputs) const noexcept {
    const double ratio =
        height > 0 ? static_cast<double>(inputs) / static_cast<double>(outputs) : 1 / scale;
    const auto i = static_cast<double>(output), last = static_cast<double>(inputs - 1);
    double x = asymmetric ? i * ratio : (i + 0.5) * ratio - 0.5;
    if (align_corners) x = outputs > 1 ? i * last / static_cast<double>(outputs - 1) : 0;
    x = x < 0 ? 0 : x > last ? last : x;
    if (!bilinear) x = asymmetric ? std::floor(x) : std::ceil(x - 0.5);
    const auto low = static_cast<int64_t>(x);
    const auto share = static_cast<float>(x - static_cast<double>(low));
    return {low, share > 0 ? low + 1 : low, share};
  }
};

inline Status InferResize(const Inference& op, const ResizeAttributes& given) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckPlane(op));
  const Shape& x = op.inputs[0].shape;
  const Shape y = {x[0], given.Outputs(given.height, x[1]), given.Outputs(given.width, x[2]), x[3]};
  if (given.wrong || y[1] < 1 || y[2] < 1) {
    return op.InputError(0,
                         "a 'size' of one number or two, for rows and columns, or a 'scale' "
                         "that leaves some of them");
  }
  op.AddOutput(y);
  return op.Gradients(1, 0);
}

// x (B, ..., C) -> the same, weight and bias (C): y = (x - mean) / sqrt(variance + epsilon) * weight
// + bias, with mean and variance of each group of channels of each sample (Wu and He,
// arXiv:1803.08494). As many groups as channels make instance norm.
struct GroupNormRule {
  int64_t groups;
  double epsilon;

  explicit GroupNormRule(const Options& attributes) noexcept
      : groups(attributes.Int("groups")), epsilon(attributes.Float("epsilon")) {}

  Status Infer(const Inference& op) const noexcept {
    ENGINE_RETURN_IF_ERROR(CheckNormInputs(op, 1));
    const Shape& x = op.inputs[0].shape;
    if (x[-1] % groups != 0) {
      return Status::Error(StatusCode::kConfig, "%s: %lld groups do not divide %lld channels",
                           op.name, static_cast<long long>(groups), static_cast<long long>(x[-1]));
    }
    op.AddOutput(x);
    AddNormParameters(op, x[-1]);
    return op.Gradients(0b111, 0b11);
  }
};

// x (B, H, W, C) -> (B, C, H, W); with one channel a view.
inline Status InferToChannelsFirst(const Inference& op) noexcept {
  ENGINE_RETURN_IF_ERROR(CheckPlane(op));
  const Shape& x = op.inputs[0].shape;
  op.AddOutput(Shape{x[0], x[3], x[1], x[2]});
  return op.Passes(x[3] == 1);
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
