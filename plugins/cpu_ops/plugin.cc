// The plugin cpu_ops: the CPU as a device, and its ops in float32.
#include "engine/plugin.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <new>

#include "cpu_device.h"
#include "ops.h"

namespace engine::cpu_ops {
namespace {

struct OpEntry {
  OpName name;
  OpFactory make;
};

// "accumulate" is what the core uses to add gradients; add may always be done in place.
constexpr OpEntry kOps[] = {
    {"linear", MakeLinear},
    {"tied_linear", MakeTiedLinear},
    {"relu", MakeRelu},
    {"gelu", MakeGelu},
    {"tanh", MakeTanh},
    {"add", MakeAdd},
    {"layer_norm", MakeLayerNorm},
    {"batch_norm", MakeBatchNorm},
    {"dropout", MakeDropout},
    {"embedding", MakeEmbedding},
    {"attention", MakeAttention},
    {"flatten", MakeFlatten},
    {"to_channels_last", MakeToChannelsLast},
    {"conv2d", MakeConv2d},
    {"max_pool", MakeMaxPool},
    {"avg_pool", MakeAvgPool},
    {"global_avg_pool", MakeGlobalAvgPool},
    {"softmax_cross_entropy", MakeSoftmaxCrossEntropy},
    {"accumulate", MakeAdd},
};

constexpr auto OpNames() noexcept {
  std::array<OpName, std::size(kOps)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kOps[i].name;
  return names;
}

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

constexpr std::array kOptions = {
    OptionSpec{.name = "threads",
               .type = OptionType::kInt,
               .default_value = "0",
               .min = 0,
               .max = 256,
               .doc = "threads of one op; 0: the processors that this process may use, divided "
                      "among the ranks of the host"},
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

class CpuOpLibrary final : public OpLibrary {
 public:
  explicit CpuOpLibrary(int32_t threads) noexcept : threads_(threads) {}

  Device* device() noexcept override { return &device_; }

  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    for (const OpEntry& entry : kOps) {
      if (entry.name.view() != name) continue;
      *out = entry.make({.name = entry.name.text, .threads = threads_}, attributes);
      if (*out != nullptr) return {};
      return Status::Error(StatusCode::kResourceExhausted, "no memory for an op '%s'",
                           entry.name.text);
    }
    return Status::Error(StatusCode::kInvalidArgument, "cpu_ops has no op '%.*s'",
                         static_cast<int>(name.size()), name.data());
  }

 private:
  CpuDevice device_;
  const int32_t threads_;
};

// A launcher that pins ranks leaves each its own processors; else all ranks see the same ones.
int32_t DefaultThreads(const RankInfo& rank) noexcept {
  cpu_set_t processors;
  const int usable =
      sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
  return std::clamp(usable / std::max(rank.local_world_size, 1), 1, 256);
}

Status Create(Host& host, const Options& options, Object** out) noexcept {
  const auto configured = static_cast<int32_t>(options.Int("threads"));
  *out = new (std::nothrow)
      CpuOpLibrary(configured > 0 ? configured : DefaultThreads(host.rank_info()));
  if (*out != nullptr) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for cpu_ops");
}

}  // namespace
}  // namespace engine::cpu_ops

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "cpu_ops",
     .version = "1.0.0",
     .kind = engine::PluginKind::kOps,
     .device = "cpu",
     .doc = "ops in float32 on the CPU (oneDNN and own kernels), deterministic for a fixed number "
            "of threads",
     .create = engine::cpu_ops::Create},
    engine::cpu_ops::OpNames(), engine::cpu_ops::kOptions);
