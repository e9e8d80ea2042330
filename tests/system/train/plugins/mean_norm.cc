// mean_norm: scales each gradient of this rank to the mean of its norms so far, so a run that forgets
// the mean is another run.
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/ext/saved_state.h"
#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine::mean_norm {
namespace {

class MeanNorm final : public GradientHookBase, public SavedStateBase {
 public:
  explicit MeanNorm(const Options& options)
      : version_(static_cast<uint32_t>(options.Int("version"))) {}

  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kLocal, .scope = HookScope::kTensor};
  }
  void* Query(std::string_view id) noexcept override {
    return version_ > 0 && id == SavedState::kId ? static_cast<SavedState*>(this) : nullptr;
  }
  Status Setup(uint32_t parameters) noexcept override {
    means_.resize(parameters);
    return {};
  }
  Status BeginStep(uint64_t) noexcept override { return {}; }
  Status Observe(const GradientView&) noexcept override { return {}; }
  Status Apply(const GradientView& gradient) noexcept override {
    double sum = 0;
    for (int64_t i = 0; i < gradient.count; ++i) sum += gradient.data[i] * gradient.data[i];
    if (sum == 0) return {};
    double& mean = means_[gradient.parameter];
    mean = mean == 0 ? std::sqrt(sum) : 0.9 * mean + 0.1 * std::sqrt(sum);
    const auto factor = static_cast<float>(mean / std::sqrt(sum));
    for (int64_t i = 0; i < gradient.count; ++i) gradient.data[i] *= factor;
    return {};
  }
  std::span<float> Observed() noexcept override { return {}; }

  uint32_t state_version() const noexcept override { return version_; }
  Status SaveState(void (*sink)(void*, const uint8_t*, uint64_t), void* context) noexcept override {
    sink(context, reinterpret_cast<const uint8_t*>(means_.data()), means_.size() * sizeof(double));
    return {};
  }
  Status LoadState(std::span<const uint8_t> state) noexcept override {
    if (state.size() != means_.size() * sizeof(double)) {
      return Status::Error(StatusCode::kBadData, "%zu bytes", state.size());
    }
    std::memcpy(means_.data(), state.data(), state.size());
    return {};
  }

 private:
  const uint32_t version_;
  std::vector<double> means_;  // by parameter; 0: no norm so far
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "mean_norm",
     .version = "1.0.0",
     .kind = PluginKind::kHook,
     .doc = "scales gradients to the mean of their norms",
     .create = kit::Create<MeanNorm>},
    NoOps(), std::array{kit::IntOption("version", "1", 0, 9, "of what is kept; 0: nothing is")});

}  // namespace engine::mean_norm
