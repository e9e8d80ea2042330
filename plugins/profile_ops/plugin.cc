// The plugin profile_ops: layers that sleep, beside the ops of a CPU device.
#include "engine/plugin.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <new>
#include <string_view>

#include "kit/create.h"
#include "kit/options.h"
#include "pacer.h"
#include "profile_layer.h"

namespace engine::profile_ops {
namespace {

constexpr double kLongest = 1e9;           // microseconds
constexpr double kLargestLayer = 1 << 30;  // parameters

constexpr std::array kOptions = {
    kit::FloatOption("time_scale", "1", 0, 1000, "factor of all times"),
    kit::FloatOption("size_scale", "1", 1e-9, 1000, "factor of all numbers of parameters"),
    kit::FloatOption(
        "jitter", "0", 0, 0.999,
        "each time is multiplied by a number from 1 - jitter to 1 + jitter: a function "
        "of seed, rank, layer and step"),
    kit::Attribute("profile_layer", kit::FloatOption("forward_us", "", 0, kLongest,
                                                     "how long the forward pass takes")),
    kit::Attribute("profile_layer",
                   kit::FloatOption("backward_us", "", 0, kLongest,
                                    "how long the backward pass takes; the gradient is ready at "
                                    "its end")),
    kit::Attribute("profile_layer", kit::IntOption("parameters", "", 1, kLargestLayer,
                                                   "number of float32 parameters")),
    kit::Attribute("profile_layer",
                   kit::IntOption("id", "0", 0, kLargestLayer,
                                  "layers of different ids have different gradients and jitter")),
};

// Ops share the pacer and, as ops do, run on the compute lane alone: it needs no lock.
class ProfileOpLibrary final : public OpLibraryBase {
 public:
  ProfileOpLibrary(const Options& options, int32_t rank) noexcept
      : time_scale_(options.Float("time_scale")),
        size_scale_(options.Float("size_scale")),
        jitter_(options.Float("jitter")),
        rank_(static_cast<uint64_t>(rank)) {}

  Device* device() noexcept override { return nullptr; }

  Status CreateOp(std::string_view name, const Options& attributes, Op** out) noexcept override {
    if (name != "profile_layer") {
      return Status::Error(StatusCode::kInvalidArgument, "profile_ops has no op '%.*s'",
                           static_cast<int>(name.size()), name.data());
    }
    const double parameters =
        std::round(static_cast<double>(attributes.Int("parameters")) * size_scale_);
    if (parameters > kLargestLayer) {
      return Status::Error(StatusCode::kConfig,
                           "profile_layer: %.0f parameters are too many for one layer; the most "
                           "are %.0f: lower parameters or profile_ops.size_scale",
                           parameters, kLargestLayer);
    }
    const LayerSettings settings = {
        .id = static_cast<uint64_t>(attributes.Int("id")),
        .forward_us = attributes.Float("forward_us") * time_scale_,
        .backward_us = attributes.Float("backward_us") * time_scale_,
        .parameters = std::max<int64_t>(1, static_cast<int64_t>(parameters)),
        .jitter = jitter_,
        .rank = rank_};
    *out = new (std::nothrow) ProfileLayer(settings, &pacer_);
    if (*out != nullptr) return {};
    return Status::Error(StatusCode::kResourceExhausted, "no memory for a profile_layer");
  }

 private:
  const double time_scale_;
  const double size_scale_;
  const double jitter_;
  const uint64_t rank_;
  Pacer pacer_;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  const Device* device = host.device();
  if (device == nullptr || std::string_view(host.device()->type()) != "cpu") {
    return Status::Error(StatusCode::kConfig,
                         "profile_ops works in the memory of a CPU; choose it beside an op plugin "
                         "with the device cpu, such as cpu_ops");
  }
  return kit::Make<ProfileOpLibrary>(out, options, host.rank_info().rank);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "profile_ops",
     .version = "1.0.0",
     .kind = PluginKind::kOps,
     .doc = "layers of a measured profile: sleeps instead of arithmetic, to measure schedulers",
     .create = Create},
    std::array<OpName, 1>{"profile_layer"}, kOptions);

}  // namespace engine::profile_ops
