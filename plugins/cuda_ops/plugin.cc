// The plugin cuda_ops: one NVIDIA GPU as a device, and its ops in float32 or bfloat16.
#include "engine/plugin.h"

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "blas.h"
#include "cuda_device.h"
#include "cuda_op.h"
#include "cudnn_attention.h"
#include "cudnn_library.h"
#include "kit/create.h"
#include "kit/op_attributes.h"
#include "kit/options.h"

namespace engine::cuda_ops {
namespace {

// All of those, and two that models take in the place of several of them.
constexpr kit::OpEntry<OpContext> kOps[] = {{"mlp", &kMakeMlp},
                                            {"add_layer_norm", &kMakeAddLayerNorm},
                                            ENGINE_KIT_EACH_OP(ENGINE_KIT_OP_ENTRY)};

constexpr std::array kOwnOptions = {
    kit::IntOption("device", "-1", -1, 1023,
                   "number of the GPU; -1: the rank's number on its host, modulo their number"),
    kit::EnumOption("precision", "float32", "float32|tf32|bf16",
                    "of products and activations; tf32: products round to 10 bits; bf16: with "
                    "float32 parameters, sums and parameter gradients"),
    kit::EnumOption("tune", "time", "time|bits|off",
                    "algorithm of a product; time: the fastest, measured once for tune_file; "
                    "bits: cuBLASLt's first that does not split sums; off: its first"),
    kit::StringOption("tune_file", "cuda_ops_tune.txt",
                      "where the choices of tune=time are kept, for all ranks of a host; empty: "
                      "nowhere"),
    kit::EnumOption("attention", "auto", "auto|cudnn|own",
                    "kernels of attention in bf16; auto: cuDNN's where it has a plan, backward "
                    "only if not deterministic"),
    kit::BoolOption("deterministic", "true",
                    "whether a run repeats to the bit; false: cuDNN may add up gradients of "
                    "attention in any order")};

constexpr auto kOptions = kit::Joined(
    kOwnOptions,
    kit::AttributesOf("mlp",
                      kit::IntOption("units", "", 1, kit::kMaxExtent,
                                     "size of the last dimension between the two layers"),
                      kit::FloatOption("init_scale", "0.02", 1e-12, 1,
                                       "standard deviation of the initial weights of fc"),
                      kit::FloatOption("proj_init_scale", "0.02", 1e-12, 1,
                                       "standard deviation of the initial weights of proj")),
    kit::AttributesOf("add_layer_norm", kit::kEpsilon), kit::kOpAttributes);

class CudaOpLibrary final : public OpLibraryBase {
 public:
  CudaOpLibrary(std::unique_ptr<CudaDevice> device, std::unique_ptr<Blas> blas, Precision precision,
                const Options& options, Host* host) noexcept
      : device_(std::move(device)),
        blas_(std::move(blas)),
        attention_(&cudnn_, options, host),
        precision_(precision) {}

  Device* device() noexcept override { return device_.get(); }

  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    ENGINE_RETURN_IF_ERROR(device_->Use());
    const OpContext context = {.device = device_.get(),
                               .blas = blas_.get(),
                               .cudnn = &cudnn_,
                               .precision = precision_,
                               .attention = &attention_};
    return kit::CreateOp("cuda_ops", kOps, name, context, attributes, out);
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

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
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
  return kit::Make<CudaOpLibrary>(out, std::move(device), std::move(blas), precision, options,
                                  &host);
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
    engine::kit::NamesOf(engine::cuda_ops::kOps), engine::cuda_ops::kOptions);
