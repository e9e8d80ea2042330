// lifo_sched: the compute lane takes the task that became ready last.
#include <cstdint>
#include <vector>

#include "engine/plugin.h"
#include "kit/bucket_planner.h"
#include "kit/options.h"
#include "kit/scheduler.h"

namespace {

namespace kit = engine::kit;

class LifoScheduler final : public engine::SchedulerBase {
 public:
  explicit LifoScheduler(const engine::Options& options) noexcept
      : fuse_bytes_(options.Int("fuse_bytes")) {}

  engine::SchedulerTraits traits() const noexcept override {
    return {.order = engine::TransferOrder::kStatic};
  }

  engine::Status Plan(const engine::ModelInfo& model, engine::PlanSink& sink) noexcept override {
    return kit::PlanBuckets("lifo_sched", model, {.fuse_bytes = fuse_bytes_}, sink);
  }

  engine::Status Begin(std::span<const engine::TaskInfo> tasks) noexcept override {
    return kit::NoThrow("lifo_sched", [&] {
      compute_.reserve(tasks.size());
      compute_.clear();
      io_.Reset(tasks, kit::StaticTransferOrder());
    });
  }

  void On(const engine::SchedulerEvent& event) noexcept override {
    if (event.kind == engine::EventKind::kTaskReady) {
      if (!io_.Take(event.task)) compute_.push_back(event.task);
    } else if (event.kind == engine::EventKind::kError) {
      compute_.clear();
      io_.Clear();
    }
  }

  engine::Action Next(engine::Lane lane) noexcept override {
    // Not last first: which transfer became ready last is another one on each rank, and a
    // collective that the ranks start in different orders never ends.
    if (lane == engine::Lane::kIo) return io_.HeadIsReady() ? kit::Run(io_.Pop()) : kit::Hold();
    if (compute_.empty()) return kit::Hold();
    const uint32_t task = compute_.back();
    compute_.pop_back();
    return kit::Run(task);
  }

 private:
  const int64_t fuse_bytes_;
  std::vector<uint32_t> compute_;  // a stack
  kit::TransferList io_;
};

engine::StatusValue Create(engine::Host&, const engine::Options& options,
                           engine::Object** out) noexcept {
  return kit::Make<LifoScheduler>(out, options);
}

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = engine::DescribePlugin(
    {.name = "lifo_sched",
     .version = "1.1.0",
     .kind = engine::PluginKind::kScheduler,
     .doc = "runs first what became ready last",
     .create = Create},
    engine::NoOps(),
    std::array{kit::IntOption("fuse_bytes", "65536", 0, 1 << 30,
                              "gradients travel together until they are so many bytes")});
