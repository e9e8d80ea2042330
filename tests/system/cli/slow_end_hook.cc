// A hook that fails at step 3 of rank 1, and whose end takes longer than the launcher's grace.
#include <chrono>
#include <span>
#include <thread>

#include "engine/plugin.h"
#include "kit/create.h"

namespace engine::slow_end_hook {
namespace {

class SlowEnd final : public GradientHook {
 public:
  explicit SlowEnd(bool fails) : fails_(fails) {}
  ~SlowEnd() override {
    if (fails_) std::this_thread::sleep_for(std::chrono::seconds(6));
  }

  HookTraits traits() const noexcept override { return {.stage = HookStage::kReduced}; }
  Status Setup(uint32_t) noexcept override { return {}; }
  Status BeginStep(uint64_t step) noexcept override {
    if (!fails_ || step < 3) return {};
    return Status::Error(StatusCode::kBadData, "a planned failure");
  }
  Status Observe(const GradientView&) noexcept override { return {}; }
  std::span<float> Observed() noexcept override { return {}; }
  Status Apply(const GradientView&) noexcept override { return {}; }

 private:
  const bool fails_;
};

Status Create(Host& host, const Options&, Object** out) noexcept {
  return kit::Make<SlowEnd>(out, host.rank_info().rank == 1);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL =
    DescribePlugin({.name = "slow_end_hook",
                    .version = "1.0.0",
                    .kind = PluginKind::kHook,
                    .doc = "for a test",
                    .create = Create},
                   NoOps(), NoOptions());

}  // namespace engine::slow_end_hook
