// The plugin cpu_ops: the CPU as a device, and its ops in float32.
#include "engine/plugin.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include "cpu_device.h"
#include "kit/op_attributes.h"
#include "kit/options.h"
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

constexpr auto kOptions = kit::WithOpAttributes(std::array{
    kit::IntOption("threads", "0", 0, 256,
                   "threads of one op; 0: the processors that this process may use, divided "
                   "among the ranks of the host")});

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
