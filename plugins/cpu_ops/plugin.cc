// The plugin cpu_ops: the CPU as a device, and its ops in float32.
#include "engine/plugin.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include "array_ops.h"
#include "cpu_device.h"
#include "cpu_op.h"
#include "kit/array_op_attributes.h"
#include "kit/op_attributes.h"
#include "kit/options.h"

namespace engine::cpu_ops {
namespace {

// "accumulate" is what the core uses to add gradients.
constexpr kit::OpEntry<OpContext> kOps[] = {
    {"linear", &kMakeLinear},
    {"tied_linear", &kMakeTiedLinear},
    {"layer_norm", &kMakeLayerNorm},
    {"rms_norm", &kMakeRmsNorm},
    {"batch_norm", &kMakeBatchNorm},
    {"group_norm", &kMakeGroupNorm},
    {"dropout", &kMakeDropout},
    {"embedding", &kMakeEmbedding},
    {"attention", &kMakeAttention},
    {"scaled_dot_product_attention", &kMakeSdpa},
    {"rotary_embedding", &kMakeRotaryEmbedding},
    {"flatten", &kMakeFlatten},
    {"to_channels_last", &kMakeToChannelsLast},
    {"to_channels_first", &kMakeToChannelsFirst},
    {"conv2d", &kMakeConv2d},
    {"conv_transpose2d", &kMakeConvTranspose2d},
    {"max_pool", &kMakeMaxPool},
    {"avg_pool", &kMakeAvgPool},
    {"global_avg_pool", &kMakeGlobalAvgPool},
    {"global_max_pool", &kMakeGlobalMaxPool},
    {"resize", &kMakeResize},
    {"softmax_cross_entropy", &kMakeSoftmaxCrossEntropy},
    {"mean_squared_error", &kMakeMeanSquaredError},
    {"mean_absolute_error", &kMakeMeanAbsoluteError},
    {"huber", &kMakeHuber},
    {"binary_cross_entropy", &kMakeBinaryCrossEntropy},
    {"accumulate", &kMakeAccumulate},
    // Functions of one input, of several.
    {"relu", &kMakeRelu},
    {"gelu", &kMakeGelu},
    {"gelu_erf", &kMakeGeluErf},
    {"tanh", &kMakeTanh},
    {"sigmoid", &kMakeSigmoid},
    {"silu", &kMakeSilu},
    {"hard_sigmoid", &kMakeHardSigmoid},
    {"hard_swish", &kMakeHardSwish},
    {"leaky_relu", &kMakeLeakyRelu},
    {"elu", &kMakeElu},
    {"softplus", &kMakeSoftplus},
    {"mish", &kMakeMish},
    {"clip", &kMakeClip},
    {"scale", &kMakeScale},
    {"exp", &kMakeExp},
    {"log", &kMakeLog},
    {"sqrt", &kMakeSqrt},
    {"reciprocal", &kMakeReciprocal},
    {"abs", &kMakeAbs},
    {"erf", &kMakeErf},
    {"sin", &kMakeSin},
    {"cos", &kMakeCos},
    {"pow", &kMakePow},
    {"add", &kMakeAdd},
    {"subtract", &kMakeSubtract},
    {"multiply", &kMakeMultiply},
    {"divide", &kMakeDivide},
    {"maximum", &kMakeMaximum},
    {"minimum", &kMakeMinimum},
    {"power", &kMakePower},
    {"prelu", &kMakePrelu},
    {"where", &kMakeWhere},
    // Arrays.
    {"softmax", &kMakeSoftmax},
    {"log_softmax", &kMakeLogSoftmax},
    {"matmul", &kMakeMatmul},
    {"reduce_sum", &kMakeReduceSum},
    {"reduce_mean", &kMakeReduceMean},
    {"reduce_max", &kMakeReduceMax},
    {"reshape", &kMakeReshape},
    {"transpose", &kMakeTranspose},
    {"concat", &kMakeConcat},
    {"slice", &kMakeSlice},
    {"pad", &kMakePad},
    {"expand", &kMakeExpand},
    {"gather", &kMakeGather},
};

constexpr auto kOptions = kit::WithOpAttributes(
    std::array{kit::IntOption("threads", "0", 0, 256,
                              "threads of one op; 0: the processors that this process may use, "
                              "divided among the ranks of the host")},
    kit::kArrayOpAttributes);

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
    engine::kit::NamesOf(engine::cpu_ops::kOps), engine::cpu_ops::kOptions);
