// odd_rank: changes the gradient of one parameter on one rank in one step, behind its sum, and lets the
// others wait for this rank at the start.
#include <array>
#include <chrono>
#include <string>
#include <thread>

#include "engine/plugin.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine::odd_rank {
namespace {

class OddRank final : public GradientHookBase {
 public:
  OddRank(const RankInfo& rank, const Options& options)
      : is_odd_(rank.rank == options.Int("rank")),
        step_(static_cast<uint64_t>(options.Int("step"))),
        parameter_(options.String("parameter")),
        pause_ms_(is_odd_ ? options.Int("pause_ms") : 0) {}

  HookTraits traits() const noexcept override {
    return {.stage = HookStage::kReduced, .scope = HookScope::kSpan};
  }
  Status Setup(uint32_t) noexcept override {
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms_));
    return {};
  }
  Status BeginStep(uint64_t step) noexcept override {
    now_ = step;
    return {};
  }
  Status Observe(const GradientView&) noexcept override { return {}; }
  Status Apply(const GradientView& gradient) noexcept override {
    if (is_odd_ && now_ == step_ && gradient.name == parameter_) gradient.data[0] += 1;
    return {};
  }
  std::span<float> Observed() noexcept override { return {}; }

 private:
  const bool is_odd_;
  const uint64_t step_;
  const std::string parameter_;
  const int64_t pause_ms_;
  uint64_t now_ = 0;
};

StatusValue Create(Host& host, const Options& options, Object** out) noexcept {
  return kit::Make<OddRank>(out, host.rank_info(), options);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "odd_rank",
                    .version = "1.0.0",
                    .kind = PluginKind::kHook,
                    .doc = "changes one gradient on one rank",
                    .create = Create},
                   NoOps(),
                   std::array{kit::IntOption("rank", "1", 0, 1e6, "the one that differs"),
                              kit::IntOption("step", "1", 1, 1e15, "in which it does"),
                              kit::StringOption("parameter", "", "of which"),
                              kit::IntOption("pause_ms", "0", 0, 1e6, "at the start")});

}  // namespace engine::odd_rank
