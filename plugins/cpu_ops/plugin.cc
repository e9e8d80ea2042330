// The plugin cpu_ops: the CPU as a device, and its ops in float32 or bfloat16.
#include "engine/plugin.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "cpu_device.h"
#include "cpu_op.h"
#include "float32_border.h"
#include "kit/create.h"
#include "kit/op_attributes.h"
#include "kit/options.h"
#include "products.h"

namespace engine::cpu_ops {
namespace {

constexpr kit::OpEntry<OpContext> kOps[] = {ENGINE_KIT_EACH_OP(ENGINE_KIT_OP_ENTRY)};

constexpr auto kOptions = kit::Joined(
    std::array{kit::EnumOption("precision", "float32", "float32|bf16|auto",
                               "of products and activations; bf16: with float32 parameters, sums "
                               "and parameter gradients; auto: bf16 on a processor that has it"),
               kit::IntOption("threads", "0", 0, 256,
                              "threads of one op; 0: the processors that this process may use, "
                              "divided among the ranks of the host")},
    kit::kOpAttributes);

class CpuOpLibrary final : public OpLibraryBase {
 public:
  CpuOpLibrary(int32_t threads, DType activation) noexcept
      : threads_(threads), activation_(activation) {}

  Device* device() noexcept override { return &device_; }

  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    const OpContext context = {.threads = threads_, .activation = activation_};
    ENGINE_RETURN_IF_ERROR(kit::CreateOp("cpu_ops", kOps, name, context, attributes, out));
    if (activation_ == DType::kFloat32) return {};
    *out = WithFloat32Border(std::unique_ptr<CpuOp>(static_cast<CpuOp*>(*out)));
    if (*out != nullptr) return {};
    return Status::Error(StatusCode::kResourceExhausted, "no memory for an op of cpu_ops");
  }

 private:
  CpuDevice device_;
  const int32_t threads_;
  const DType activation_;
};

// A launcher that pins ranks leaves each its own processors; else all ranks see the same ones.
int32_t DefaultThreads(const RankInfo& rank) noexcept {
  cpu_set_t processors;
  const int usable =
      sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
  return std::clamp(usable / std::max(rank.local_world_size, 1), 1, 256);
}

// Ranks of one run may stand on different processors, and `auto` take different dtypes: the log of each
// says which. Which dtype `precision` asks for.
Status ActivationOf(Host& host, std::string_view precision, DType* out) noexcept {
  const bool has = HasBFloat16Products(), decides = precision == "auto";
  *out = precision == "bf16" || (decides && has) ? DType::kBFloat16 : DType::kFloat32;
  if (decides) {
    host.Log(LogLevel::kInfo, has ? "cpu_ops.precision=auto took bf16"
                                  : "cpu_ops.precision=auto took float32: this processor has no "
                                    "AVX512-BF16");
  }
  if (has || *out == DType::kFloat32) return {};
  return Status::Error(StatusCode::kUnsupported,
                       "cpu_ops.precision=bf16 needs a processor with AVX512-BF16, which this one "
                       "is not: set it to auto or float32");
}

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const auto configured = static_cast<int32_t>(options.Int("threads"));
  DType activation = DType::kFloat32;
  ENGINE_RETURN_IF_ERROR(ActivationOf(host, options.String("precision"), &activation));
  return kit::Make<CpuOpLibrary>(
      out, configured > 0 ? configured : DefaultThreads(host.rank_info()), activation);
}

}  // namespace
}  // namespace engine::cpu_ops

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "cpu_ops",
     .version = "1.0.0",
     .kind = engine::PluginKind::kOps,
     .device = "cpu",
     .doc = "ops in float32 or bfloat16 on the CPU (oneDNN and own kernels), deterministic for a "
            "fixed number of threads",
     .create = engine::cpu_ops::Create},
    engine::kit::NamesOf(engine::cpu_ops::kOps), engine::cpu_ops::kOptions);
