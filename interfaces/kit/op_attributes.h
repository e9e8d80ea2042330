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
constexpr double kMaxKernel = 15;

constexpr OptionSpec kKernel =
    IntOption("kernel", "", 1, kMaxKernel, "height and width of the window");
constexpr OptionSpec kPoolStride =
    IntOption("stride", "0", 0, kMaxExtent, "positions between two windows; 0: the kernel");
constexpr OptionSpec kPoolPadding =
    IntOption("padding", "0", 0, kMaxKernel - 1,
              "positions around the plane that windows may reach; less than the kernel");
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
    Attribute("conv2d", IntOption("channels", "", 1, kMaxExtent, "channels of the output")),
    Attribute("conv2d", kKernel),
    Attribute("conv2d", IntOption("stride", "1", 1, kMaxExtent, "positions between two windows")),
    Attribute("conv2d",
              IntOption("padding", "-1", -1, kMaxKernel - 1,
                        "zeros on every side of the plane; -1: half the kernel, which with stride "
                        "1 and an odd kernel keeps the size")),
    Attribute("conv2d", kBias),
    Attribute("conv2d",
              EnumOption("init", "uniform", "uniform|kaiming",
                         "uniform: weights and bias in +-1/sqrt(K K inputs); kaiming: weights "
                         "normal with variance 2 / (K K channels), bias 0")),
    Attribute("max_pool", kKernel),
    Attribute("max_pool", kPoolStride),
    Attribute("max_pool", kPoolPadding),
    Attribute("avg_pool", kKernel),
    Attribute("avg_pool", kPoolStride),
    Attribute("avg_pool", kPoolPadding),
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

// `own`, then kOpAttributes.
template <size_t kOwn>
constexpr std::array<OptionSpec, kOwn + kOpAttributes.size()> WithOpAttributes(
    const std::array<OptionSpec, kOwn>& own) noexcept {
  std::array<OptionSpec, kOwn + kOpAttributes.size()> all;
  for (size_t i = 0; i < kOwn; ++i) all[i] = own[i];
  for (size_t i = 0; i < kOpAttributes.size(); ++i) all[kOwn + i] = kOpAttributes[i];
  return all;
}

}  // namespace engine::kit
