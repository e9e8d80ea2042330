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

// In the descriptor of an op library, behind its own options.
constexpr std::array kOpAttributes = {
    Attribute("linear",
              IntOption("units", "", 1, kMaxExtent, "size of the last dimension of the output")),
    Attribute("linear", kBias),
    Attribute("linear", BoolOption("transposed", "false",
                                   "whether the weight is (K, units); else (units, K)")),
    Attribute("linear",
              FloatOption("init_scale", "0", 0, 100,
                          "standard deviation of the initial weights, with a bias of 0; 0: weights "
                          "and bias uniform in +-1/sqrt(K)")),
    Attribute("layer_norm", kEpsilon),
    Attribute("batch_norm",
              FloatOption("momentum", "0.1", 0, 1, "share of a batch in the running statistics")),
    Attribute("batch_norm", kEpsilon),
    Attribute("batch_norm", BoolOption("sync", "true",
                                       "whether the statistics are those of the batch of all "
                                       "ranks; false: of each rank's own part")),
    Attribute("dropout",
              FloatOption("rate", "", 0, 1,
                          "probability that an element becomes 0 while training; less than 1")),
    Attribute("embedding", IntOption("vocabulary", "", 1, kMaxExtent, "number of token vectors")),
    Attribute("embedding", IntOption("width", "", 1, kMaxExtent, "size of a token vector")),
    Attribute("embedding", IntOption("positions", "0", 0, kMaxExtent,
                                     "number of learned position vectors that are added; 0: none")),
    Attribute("embedding", FloatOption("init_scale", "0.02", 0, 100,
                                       "standard deviation of the initial vectors")),
    Attribute("attention",
              IntOption("heads", "", 1, kMaxExtent, "number of heads; divides the width")),
    Attribute("attention", BoolOption("causal", "true",
                                      "whether a position sees only itself and those before it")),
    Attribute("conv2d", kChannels),
    Attribute("conv2d", kKernel),
    Attribute("conv2d", kStride),
    Attribute("conv2d",
              IntsOption("padding", "-1", -1, kMaxPadding,
                         "zeros around the plane, or at its top, left, bottom, right; -1: as many "
                         "as keep the size with stride 1 and an odd kernel")),
    Attribute("conv2d", kDilation),
    Attribute("conv2d", kGroups),
    Attribute("conv2d", kBias),
    Attribute("conv2d",
              EnumOption("init", "uniform", "uniform|kaiming",
                         "uniform: weights and bias in +-1/sqrt(fan-in); kaiming: weights normal "
                         "with variance 2 / (taps channels), bias 0")),
    Attribute("conv2d", EnumOption("layout", "hwio", "hwio|oihw",
                                   "order of the weight's dimensions: rows, columns, inputs of a "
                                   "group, channels, or as in PyTorch")),
    Attribute("conv_transpose2d", kChannels),
    Attribute("conv_transpose2d", kKernel),
    Attribute("conv_transpose2d", kStride),
    Attribute("conv_transpose2d",
              IntsOption("padding", "0", 0, kMaxPadding,
                         "what is cut off around the output, or at top, left, bottom, right")),
    Attribute("conv_transpose2d", IntsOption("output_padding", "0", 0, kMaxPadding,
                                             "rows, columns more at the bottom and the right")),
    Attribute("conv_transpose2d", kDilation),
    Attribute("conv_transpose2d", kGroups),
    Attribute("conv_transpose2d", kBias),
    Attribute("max_pool", kKernel),
    Attribute("max_pool", kPoolStride),
    Attribute("max_pool", kPoolPadding),
    Attribute("max_pool", kDilation),
    Attribute("max_pool", kCeil),
    Attribute("avg_pool", kKernel),
    Attribute("avg_pool", kPoolStride),
    Attribute("avg_pool", kPoolPadding),
    Attribute("avg_pool", kCeil),
    Attribute("avg_pool",
              BoolOption("count_padding", "true", "whether padding counts as zeros in the mean")),
    Attribute("resize", IntsOption("size", "", 1, kMaxExtent, "rows, columns of the output")),
    Attribute("resize",
              FloatOption("scale", "2", 1e-3, 1e3, "of rows and columns, where no size is given")),
    Attribute("resize", EnumOption("mode", "nearest", "nearest|bilinear", "what is between")),
    Attribute("resize",
              EnumOption("coordinates", "half_pixel", "half_pixel|asymmetric|align_corners",
                         "where output i lies in the input: (i + 0.5) / scale - 0.5, i / scale, or "
                         "with the first and the last in place")),
    Attribute("group_norm", IntOption("groups", "", 1, kMaxExtent,
                                      "groups of channels that are normalised together")),
    Attribute("group_norm", kEpsilon),
    Attribute("softmax_cross_entropy",
              FloatOption("label_smoothing", "0", 0, 1,
                          "share of a target that is spread evenly over all classes")),
    Attribute("softmax_cross_entropy", IntOption("ignore_index", "-1", -kMaxExtent, kMaxExtent,
                                                 "a target that counts for nothing")),
    Attribute("huber", FloatOption("delta", "1", 1e-9, 1e9,
                                   "distance beyond which the loss grows linearly")),
    Attribute("binary_cross_entropy",
              FloatOption("pos_weight", "1", 0, 1e9, "factor of the loss of targets that are 1")),
    Attribute("softmax_cross_entropy", kLossWeight),
    Attribute("softmax_cross_entropy", kAuxiliary),
    Attribute("mean_squared_error", kLossWeight),
    Attribute("mean_squared_error", kAuxiliary),
    Attribute("mean_absolute_error", kLossWeight),
    Attribute("mean_absolute_error", kAuxiliary),
    Attribute("huber", kLossWeight),
    Attribute("huber", kAuxiliary),
    Attribute("binary_cross_entropy", kLossWeight),
    Attribute("binary_cross_entropy", kAuxiliary),
};

// `own`, then kOpAttributes, then those of further headers (kArrayOpAttributes).
template <size_t kOwn, size_t... kMore>
constexpr auto WithOpAttributes(const std::array<OptionSpec, kOwn>& own,
                                const std::array<OptionSpec, kMore>&... more) noexcept {
  std::array<OptionSpec, kOwn + kOpAttributes.size() + (kMore + ... + 0)> all;
  size_t count = 0;
  const auto append = [&](const auto& list) {
    for (const OptionSpec& spec : list) all[count++] = spec;
  };
  append(own);
  append(kOpAttributes);
  (append(more), ...);
  return all;
}

}  // namespace engine::kit
