// The plugin cpu_ops: the CPU as a device, and its ops in float32.
#include "engine/plugin.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "cpu_device.h"
#include "cpu_op.h"
#include "kit/create.h"
#include "kit/op_attributes.h"
#include "kit/options.h"

namespace engine::cpu_ops {
namespace {

constexpr kit::OpEntry<OpContext> kOps[] = {ENGINE_KIT_EACH_OP(ENGINE_KIT_OP_ENTRY)};

constexpr auto kOptions = kit::Joined(
    std::array{kit::IntOption("threads", "0", 0, 256,
                              "threads of one op; 0: the processors that this process may use, "
                              "divided among the ranks of the host")},
    kit::kOpAttributes);

class CpuOpLibrary final : public OpLibraryBase {
 public:
  explicit CpuOpLibrary(int32_t threads) noexcept : threads_(threads) {}

  Device* device() noexcept override { return &device_; }

  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    return kit::CreateOp("cpu_ops", kOps, name, OpContext{.threads = threads_}, attributes, out);
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

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const auto configured = static_cast<int32_t>(options.Int("threads"));
  return kit::Make<CpuOpLibrary>(out,
                                 configured > 0 ? configured : DefaultThreads(host.rank_info()));
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
    engine::kit::NamesOf(engine::cpu_ops::kOps), engine::cpu_ops::kOptions);
