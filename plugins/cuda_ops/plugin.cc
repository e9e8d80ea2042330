// The plugin cuda_ops: one NVIDIA GPU as a device, and its ops in float32 or bfloat16.
#include "engine/plugin.h"

#include <array>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "blas.h"
#include "cuda_device.h"
#include "cudnn_attention.h"
#include "cudnn_library.h"
#include "kit/op_attributes.h"
#include "kit/options.h"
#include "ops.h"

namespace engine::cuda_ops {
namespace {

struct OpEntry {
  OpName name;
  OpFactory make;
};

// The ops of cpu_ops, and two that models take in the place of several of them: add_layer_norm,
// mlp.
constexpr OpEntry kOps[] = {
    {"linear", MakeLinear},
    {"tied_linear", MakeTiedLinear},
    {"mlp", MakeMlp},
    {"relu", MakeRelu},
    {"gelu", MakeGelu},
    {"tanh", MakeTanh},
    {"add", MakeAdd},
    {"layer_norm", MakeLayerNorm},
    {"add_layer_norm", MakeAddLayerNorm},
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

constexpr OptionSpec Positive(const FixedString<32>& scope, const FixedString<32>& name,
                              const FixedString<64>& default_value,
                              const FixedString<160>& doc) noexcept {
  return {.scope = scope,
          .name = name,
          .type = OptionType::kFloat,
          .default_value = default_value,
          .min = 1e-12,
          .max = 1,
          .doc = doc};
}

constexpr std::array kOwnOptions = {
    kit::IntOption("device", "-1", -1, 1023,
                   "number of the GPU; -1: the rank's number on its host, modulo their number"),
    kit::EnumOption("precision", "float32", "float32|tf32|bf16",
                    "of products and activations; tf32: products round to 10 bits; bf16: with "
                    "float32 parameters, sums and parameter gradients"),
    kit::EnumOption("tune", "time", "time|bits|off",
                    "algorithm of a product; time: the fastest, measured once for tune_file; "
                    "bits: cuBLASLt's first that does not split sums; off: its first"),
    OptionSpec{.name = "tune_file",
               .default_value = "cuda_ops_tune.txt",
               .doc = "where the choices of tune=time are kept, for all ranks of a host; empty: "
                      "nowhere"},
    kit::EnumOption("attention", "auto", "auto|cudnn|own",
                    "kernels of attention in bf16; auto: cuDNN's where it has a plan, backward "
                    "only if not deterministic"),
    kit::BoolOption("deterministic", "true",
                    "whether a run repeats to the bit; false: cuDNN may add up gradients of "
                    "attention in any order"),
    OptionSpec{.scope = "mlp",
               .name = "units",
               .type = OptionType::kInt,
               .min = 1,
               .max = kit::kMaxExtent,
               .doc = "size of the last dimension between the two layers"},
    Positive("mlp", "init_scale", "0.02", "standard deviation of the initial weights of fc"),
    Positive("mlp", "proj_init_scale", "0.02", "standard deviation of the initial weights of proj"),
    Positive("add_layer_norm", "epsilon", "1e-5", "added to the variance")};

constexpr auto kOptions = kit::WithOpAttributes(kOwnOptions);

class CudaOpLibrary final : public OpLibrary {
 public:
  CudaOpLibrary(std::unique_ptr<CudaDevice> device, std::unique_ptr<Blas> blas, Precision precision,
                const Options& options, Host* host) noexcept
      : device_(std::move(device)),
        blas_(std::move(blas)),
        attention_(&cudnn_, options, host),
        precision_(precision) {}

  Device* device() noexcept override { return device_.get(); }

  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    for (const OpEntry& entry : kOps) {
      if (entry.name.view() != name) continue;
      ENGINE_RETURN_IF_ERROR(device_->Use());
      *out = entry.make({.name = entry.name.text,
                         .device = device_.get(),
                         .blas = blas_.get(),
                         .cudnn = &cudnn_,
                         .precision = precision_,
                         .attention = &attention_},
                        attributes);
      if (*out != nullptr) return {};
      return Status::Error(StatusCode::kResourceExhausted, "no memory for an op '%s'",
                           entry.name.text);
    }
    return Status::Error(StatusCode::kInvalidArgument, "cuda_ops has no op '%.*s'",
                         static_cast<int>(name.size()), name.data());
  }

 private:
  const std::unique_ptr<CudaDevice> device_;
  const std::unique_ptr<Blas> blas_;
  Cudnn cudnn_;
  AttentionPlans attention_;
  const Precision precision_;
};

Precision PrecisionOf(std::string_view name) noexcept {
  if (name == "bf16") return Precision::kBFloat16;
  return name == "tf32" ? Precision::kTf32 : Precision::kFloat32;
}

Tune TuneOf(std::string_view name) noexcept {
  if (name == "time") return Tune::kTime;
  return name == "bits" ? Tune::kBits : Tune::kOff;
}

Status Create(Host& host, const Options& options, Object** out) noexcept {
  std::unique_ptr<CudaDevice> device;
  ENGINE_RETURN_IF_ERROR(CudaDevice::Create(static_cast<int32_t>(options.Int("device")),
                                            host.rank_info().local_rank, &device));
  host.Log(LogLevel::kInfo, device->description());
  const Precision precision = PrecisionOf(options.String("precision"));
  std::unique_ptr<Blas> blas;
  ENGINE_RETURN_IF_ERROR(Blas::Create(*device,
                                      {.tf32 = precision == Precision::kTf32,
                                       .tune = TuneOf(options.String("tune")),
                                       .tune_file = std::string(options.String("tune_file")),
                                       .host = &host},
                                      &blas));
  *out = new (std::nothrow)
      CudaOpLibrary(std::move(device), std::move(blas), precision, options, &host);
  if (*out != nullptr) return {};
  return Status::Error(StatusCode::kResourceExhausted, "no memory for cuda_ops");
}

}  // namespace
}  // namespace engine::cuda_ops

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "cuda_ops",
     .version = "1.0.0",
     .kind = engine::PluginKind::kOps,
     .device = "cuda",
     .doc = "ops in float32, tf32 or bfloat16 on an NVIDIA GPU (cuBLASLt, cuDNN and own kernels), "
            "deterministic by default",
     .create = engine::cuda_ops::Create},
    engine::cuda_ops::OpNames(), engine::cuda_ops::kOptions);
