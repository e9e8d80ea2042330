// The attributes of the ops that models are made of, for libraries that offer them: one set of
// names, ranges and defaults, whatever the device.
//
// Not part of the ABI fingerprint: they end up in the descriptor of the plugin that includes this.
#pragma once

#include <array>
#include <cstddef>

#include "engine/options.h"

namespace engine::kit {

constexpr double kMaxExtent = 1 << 30;

constexpr double kMaxKernel = 15;

// An attribute of a window: `scope` is an op.
constexpr OptionSpec WindowOption(const FixedString<32>& scope, const FixedString<32>& name,
                                  const FixedString<64>& default_value, double min, double max,
                                  const FixedString<160>& doc) noexcept {
  return {.scope = scope,
          .name = name,
          .type = OptionType::kInt,
          .default_value = default_value,
          .min = min,
          .max = max,
          .doc = doc};
}

constexpr OptionSpec KernelOption(const FixedString<32>& scope) noexcept {
  return WindowOption(scope, "kernel", "", 1, kMaxKernel, "height and width of the window");
}

constexpr OptionSpec PoolStrideOption(const FixedString<32>& scope) noexcept {
  return WindowOption(scope, "stride", "0", 0, kMaxExtent,
                      "positions between two windows; 0: the kernel");
}

constexpr OptionSpec PoolPaddingOption(const FixedString<32>& scope) noexcept {
  return WindowOption(scope, "padding", "0", 0, kMaxKernel - 1,
                      "positions around the plane that windows may reach; less than the kernel");
}

// In the descriptor of an op library, behind its own options.
constexpr std::array kOpAttributes = {
    OptionSpec{.scope = "linear",
               .name = "units",
               .type = OptionType::kInt,
               .min = 1,
               .max = kMaxExtent,
               .doc = "size of the last dimension of the output"},
    OptionSpec{.scope = "linear",
               .name = "bias",
               .type = OptionType::kBool,
               .default_value = "true",
               .doc = "whether a bias is added"},
    OptionSpec{.scope = "linear",
               .name = "init_scale",
               .type = OptionType::kFloat,
               .default_value = "0",
               .min = 0,
               .max = 100,
               .doc = "standard deviation of the initial weights, with a bias of 0; 0: weights and "
                      "bias uniform in +-1/sqrt(K)"},
    OptionSpec{.scope = "layer_norm",
               .name = "epsilon",
               .type = OptionType::kFloat,
               .default_value = "1e-5",
               .min = 1e-12,
               .max = 1,
               .doc = "added to the variance"},
    OptionSpec{.scope = "batch_norm",
               .name = "momentum",
               .type = OptionType::kFloat,
               .default_value = "0.1",
               .min = 0,
               .max = 1,
               .doc = "share of a batch in the running statistics"},
    OptionSpec{.scope = "batch_norm",
               .name = "epsilon",
               .type = OptionType::kFloat,
               .default_value = "1e-5",
               .min = 1e-12,
               .max = 1,
               .doc = "added to the variance"},
    OptionSpec{.scope = "batch_norm",
               .name = "sync",
               .type = OptionType::kBool,
               .default_value = "true",
               .doc = "whether the statistics are those of the batch of all ranks; false: of each "
                      "rank's own part"},
    OptionSpec{.scope = "dropout",
               .name = "rate",
               .type = OptionType::kFloat,
               .min = 0,
               .max = 1,
               .doc = "probability that an element becomes 0 while training; less than 1"},
    OptionSpec{.scope = "embedding",
               .name = "vocabulary",
               .type = OptionType::kInt,
               .min = 1,
               .max = kMaxExtent,
               .doc = "number of token vectors"},
    OptionSpec{.scope = "embedding",
               .name = "width",
               .type = OptionType::kInt,
               .min = 1,
               .max = kMaxExtent,
               .doc = "size of a token vector"},
    OptionSpec{.scope = "embedding",
               .name = "positions",
               .type = OptionType::kInt,
               .default_value = "0",
               .min = 0,
               .max = kMaxExtent,
               .doc = "number of learned position vectors that are added; 0: none"},
    OptionSpec{.scope = "embedding",
               .name = "init_scale",
               .type = OptionType::kFloat,
               .default_value = "0.02",
               .min = 0,
               .max = 100,
               .doc = "standard deviation of the initial vectors"},
    OptionSpec{.scope = "attention",
               .name = "heads",
               .type = OptionType::kInt,
               .min = 1,
               .max = kMaxExtent,
               .doc = "number of heads; divides the width"},
    OptionSpec{.scope = "attention",
               .name = "causal",
               .type = OptionType::kBool,
               .default_value = "true",
               .doc = "whether a position sees only itself and those "
                      "before it"},
    OptionSpec{.scope = "conv2d",
               .name = "channels",
               .type = OptionType::kInt,
               .min = 1,
               .max = kMaxExtent,
               .doc = "channels of the output"},
    KernelOption("conv2d"),
    WindowOption("conv2d", "stride", "1", 1, kMaxExtent, "positions between two windows"),
    WindowOption(
        "conv2d", "padding", "-1", -1, kMaxKernel - 1,
        "zeros on every side of the plane; -1: half the kernel, which with stride 1 and an "
        "odd kernel keeps the size"),
    OptionSpec{.scope = "conv2d",
               .name = "bias",
               .type = OptionType::kBool,
               .default_value = "true",
               .doc = "whether a bias is added"},
    OptionSpec{.scope = "conv2d",
               .name = "init",
               .type = OptionType::kEnum,
               .default_value = "uniform",
               .choices = "uniform|kaiming",
               .doc = "uniform: weights and bias in +-1/sqrt(K K inputs); kaiming: weights normal "
                      "with variance 2 / (K K channels), bias 0"},
    KernelOption("max_pool"),
    PoolStrideOption("max_pool"),
    PoolPaddingOption("max_pool"),
    KernelOption("avg_pool"),
    PoolStrideOption("avg_pool"),
    PoolPaddingOption("avg_pool"),
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
