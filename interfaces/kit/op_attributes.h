// The attributes of the ops that models are made of, for libraries that offer them: one set of
// names, ranges and defaults, whatever the device.
//
// No part of the ABI: they end up in the descriptor of the plugin that includes this.
#pragma once

#include <array>
#include <cstddef>

#include "engine/options.h"
#include "kit/options.h"

namespace engine::kit {

constexpr double kMaxExtent = 1 << 30;
constexpr double kMaxKernel = 256;
constexpr double kMaxPadding = 4096;
constexpr double kLargestFloat = 3.4e38;

// Of a window over a plane.
constexpr OptionSpec kKernel =
    IntsOption("kernel", "", 1, kMaxKernel,
               "rows and columns of the window; here and below one number is for both");
constexpr OptionSpec kStride =
    IntsOption("stride", "1", 1, kMaxExtent, "positions between two windows");
constexpr OptionSpec kDilation =
    IntsOption("dilation", "1", 1, kMaxExtent, "positions between two taps of a window");
constexpr OptionSpec kPoolStride =
    IntsOption("stride", "0", 0, kMaxExtent, "positions between two windows; 0: the kernel");
constexpr OptionSpec kPoolPadding =
    IntsOption("padding", "0", 0, kMaxPadding,
               "positions around the plane that windows may reach, or of top, left, bottom, right");
constexpr OptionSpec kCeil =
    BoolOption("ceil", "false", "whether a last window may reach beyond the padding");
constexpr OptionSpec kChannels = IntOption("channels", "", 1, kMaxExtent, "channels of the output");
constexpr OptionSpec kGroups =
    IntOption("groups", "1", 1, kMaxExtent,
              "groups of channels that are apart; divides the channels of input and output");
constexpr OptionSpec kBias = BoolOption("bias", "true", "whether a bias is added");
constexpr OptionSpec kLossWeight =
    FloatOption("weight", "1", 0, 1e9, "factor of the loss, but not of its number of targets");
constexpr OptionSpec kAuxiliary = BoolOption(
    "auxiliary", "false", "true: one loss more beside another, whose targets are those that count");
constexpr OptionSpec kEpsilon = FloatOption("epsilon", "1e-5", 1e-12, 1, "added to the variance");

// Axes count from 0, which is that of samples, or from -1, the last one, backwards.
constexpr OptionSpec AxisOption(OptionDefault value, OptionDoc doc) noexcept {
  return IntOption("axis", value, -6, 5, doc);
}
constexpr OptionSpec ConstantOption(OptionName name, OptionDefault value, OptionDoc doc) noexcept {
  return FloatOption(name, value, -kLargestFloat, kLargestFloat, doc);
}

constexpr OptionSpec ShapeOption(OptionDefault value) noexcept {
  return IntsOption("shape", value, -1, kMaxExtent,
                    "extents of y behind that of samples; -1: what is left, or as in x");
}

constexpr OptionSpec kAxes =
    IntsOption("axes", "", -6, 5, "that are reduced; none: all but that of samples");
constexpr OptionSpec kKeep = BoolOption("keep", "false", "whether they stay, as extents of 1");

// What follows one another.
template <size_t... kCounts>
constexpr auto Joined(const std::array<OptionSpec, kCounts>&... lists) noexcept {
  std::array<OptionSpec, (kCounts + ...)> all;
  size_t count = 0;
  const auto append = [&](const auto& list) {
    for (const OptionSpec& spec : list) all[count++] = spec;
  };
  (append(lists), ...);
  return all;
}

template <typename... Specs>
constexpr std::array<OptionSpec, sizeof...(Specs)> AttributesOf(OptionName op,
                                                                const Specs&... specs) noexcept {
  return {Attribute(op, specs)...};
}

// In the descriptor of an op library, behind its own options.
constexpr auto kOpAttributes = Joined(
    AttributesOf(
        "linear", IntOption("units", "", 1, kMaxExtent, "size of the last dimension of the output"),
        kBias,
        BoolOption("transposed", "false", "whether the weight is (K, units); else (units, K)"),
        FloatOption("init_scale", "0", 0, 100,
                    "standard deviation of the initial weights, with a bias of 0; 0: weights "
                    "and bias uniform in +-1/sqrt(K)")),
    AttributesOf("layer_norm", kEpsilon),
    AttributesOf("batch_norm",
                 FloatOption("momentum", "0.1", 0, 1, "share of a batch in the running statistics"),
                 kEpsilon,
                 BoolOption("sync", "true",
                            "whether the statistics are those of the batch of all "
                            "ranks; false: of each rank's own part")),
    AttributesOf("dropout",
                 FloatOption("rate", "", 0, 1,
                             "probability that an element becomes 0 while training; less than 1")),
    AttributesOf(
        "embedding", IntOption("vocabulary", "", 1, kMaxExtent, "number of token vectors"),
        IntOption("width", "", 1, kMaxExtent, "size of a token vector"),
        IntOption("positions", "0", 0, kMaxExtent,
                  "number of learned position vectors that are added; 0: none"),
        FloatOption("init_scale", "0.02", 0, 100, "standard deviation of the initial vectors")),
    AttributesOf(
        "attention", IntOption("heads", "", 1, kMaxExtent, "number of heads; divides the width"),
        BoolOption("causal", "true", "whether a position sees only itself and those before it")),
    AttributesOf(
        "conv2d", kChannels, kKernel, kStride,
        IntsOption("padding", "-1", -1, kMaxPadding,
                   "zeros around the plane, or at its top, left, bottom, right; -1: as many "
                   "as keep the size with stride 1 and an odd kernel"),
        kDilation, kGroups, kBias,
        EnumOption("init", "uniform", "uniform|kaiming",
                   "uniform: weights and bias in +-1/sqrt(fan-in); kaiming: weights normal "
                   "with variance 2 / (taps channels), bias 0"),
        EnumOption("layout", "hwio", "hwio|oihw",
                   "order of the weight's dimensions: rows, columns, inputs of a "
                   "group, channels, or as in PyTorch")),
    AttributesOf("conv_transpose2d", kChannels, kKernel, kStride,
                 IntsOption("padding", "0", 0, kMaxPadding,
                            "what is cut off around the output, or at top, left, bottom, right"),
                 IntsOption("output_padding", "0", 0, kMaxPadding,
                            "rows, columns more at the bottom and the right"),
                 kDilation, kGroups, kBias),
    AttributesOf("max_pool", kKernel, kPoolStride, kPoolPadding, kDilation, kCeil),
    AttributesOf(
        "avg_pool", kKernel, kPoolStride, kPoolPadding, kCeil,
        BoolOption("count_padding", "true", "whether padding counts as zeros in the mean")),
    AttributesOf(
        "resize", IntsOption("size", "", 1, kMaxExtent, "rows, columns of the output"),
        FloatOption("scale", "2", 1e-3, 1e3, "of rows and columns, where no size is given"),
        EnumOption("mode", "nearest", "nearest|bilinear", "what is between"),
        EnumOption("coordinates", "half_pixel", "half_pixel|asymmetric|align_corners",
                   "where output i lies in the input: (i + 0.5) / scale - 0.5, i / scale, or "
                   "with the first and the last in place")),
    AttributesOf(
        "group_norm",
        IntOption("groups", "", 1, kMaxExtent, "groups of channels that are normalised together"),
        kEpsilon),
    AttributesOf("softmax_cross_entropy",
                 FloatOption("label_smoothing", "0", 0, 1,
                             "share of a target that is spread evenly over all classes"),
                 IntOption("ignore_index", "-1", -kMaxExtent, kMaxExtent,
                           "a target that counts for nothing"),
                 kLossWeight, kAuxiliary),
    AttributesOf(
        "huber",
        FloatOption("delta", "1", 1e-9, 1e9, "distance beyond which the loss grows linearly"),
        kLossWeight, kAuxiliary),
    AttributesOf("binary_cross_entropy",
                 FloatOption("pos_weight", "1", 0, 1e9, "factor of the loss of targets that are 1"),
                 kLossWeight, kAuxiliary),
    AttributesOf("mean_squared_error", kLossWeight, kAuxiliary),
    AttributesOf("mean_absolute_error", kLossWeight, kAuxiliary),
    AttributesOf("scale", ConstantOption("factor", "1", "what x is multiplied by"),
                 ConstantOption("offset", "0", "what is then added")),
    AttributesOf("leaky_relu",
                 FloatOption("slope", "0.01", 0, kLargestFloat, "of x below 0, where y = slope x")),
    AttributesOf("elu", FloatOption("alpha", "1", 0, kLargestFloat,
                                    "of x below 0, where y = alpha (e^x - 1)")),
    AttributesOf("clip", ConstantOption("min", "-3.4e38", "lower bound of y"),
                 ConstantOption("max", "3.4e38", "upper bound of y")),
    AttributesOf("pow", FloatOption("exponent", "", -64, 64, "of x, a constant")),
    AttributesOf("softmax", AxisOption("-1", "along which y sums to 1")),
    AttributesOf("log_softmax", AxisOption("-1", "along which e^y sums to 1")),
    AttributesOf("matmul", BoolOption("transpose_a", "false", "whether a is (..., K, M)"),
                 BoolOption("transpose_b", "false", "whether b is (..., N, K)"),
                 ConstantOption("scale", "1", "what the product is multiplied by")),
    AttributesOf("rms_norm", kEpsilon),
    AttributesOf("scaled_dot_product_attention",
                 BoolOption("causal", "false", "whether query i sees keys 0 to i alone"),
                 FloatOption("scale", "0", 0, kLargestFloat,
                             "of the scores, before the mask; 0: 1 / sqrt(D)")),
    AttributesOf("rotary_embedding",
                 BoolOption("interleaved", "false",
                            "whether columns 2i and 2i + 1 are a pair; else i and i + D / 2 are")),
    AttributesOf("reshape", ShapeOption("-1")), AttributesOf("expand", ShapeOption("")),
    AttributesOf("transpose",
                 IntsOption("order", "", 0, 5,
                            "the axes of x in y, without that of samples; none: reversed")),
    AttributesOf("concat", AxisOption("-1", "along which inputs follow one another")),
    AttributesOf(
        "slice", AxisOption("-1", "that is cut"),
        IntOption("begin", "0", -kMaxExtent, kMaxExtent,
                  "first position; a negative one counts from the end"),
        IntOption("end", "1073741824", -kMaxExtent - 1, kMaxExtent,
                  "where to stop; negative: counts from the end"),
        IntOption("step", "1", -kMaxExtent, kMaxExtent, "positions from one to the next; not 0")),
    AttributesOf("pad",
                 IntsOption("before", "", 0, kMaxExtent,
                            "elements to add before each axis but that of samples; none: 0"),
                 IntsOption("after", "", 0, kMaxExtent, "elements to add behind each"),
                 ConstantOption("value", "0", "of the elements of mode constant"),
                 EnumOption("mode", "constant", "constant|reflect|edge",
                            "reflect: x mirrored at its first and last element; edge: those")),
    AttributesOf("gather", AxisOption("-1", "along which is picked"),
                 IntsOption("indices", "0", -kMaxExtent, kMaxExtent,
                            "positions in x, negative ones from the end")),
    AttributesOf("reduce_sum", kAxes, kKeep), AttributesOf("reduce_mean", kAxes, kKeep),
    AttributesOf("reduce_max", kAxes, kKeep));

}  // namespace engine::kit
