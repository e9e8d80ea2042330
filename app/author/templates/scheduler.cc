// my_plugin: gradients leave in the order in which they become ready, small ones together; compute
// tasks run in an order that lets gradients leave, and the next forward pass begin, soonest.
#include "kit/scheduler.h"

#include <array>
#include <cstdint>

#include "engine/plugin.h"
#include "kit/bucket_planner.h"
#include "kit/create.h"
#include "kit/options.h"

namespace engine {
namespace {

class InReadyOrder final : public SchedulerBase {
 public:
  // Options that the descriptor below publishes are always there, and within their ranges.
  explicit InReadyOrder(const Options& options) noexcept : fuse_bytes_(options.Int("fuse_bytes")) {}

  // All ranks must start transfers in one order. kStatic: it follows from the plan alone.
  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kStatic}; }

  // What travels together.
  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    return kit::PlanBuckets("my_plugin", model, {.fuse_bytes = fuse_bytes_}, sink);
  }

  // The tasks of a step, which every step repeats. Memory is asked for here: On and Next may not.
  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    return kit::NoThrow("my_plugin", [&] {
      compute_.Reset(tasks, kit::ComputeOrder());
      transfers_.Reset(tasks, kit::StaticTransferOrder());
    });
  }

  void On(const SchedulerEvent& event) noexcept override {
    if (event.kind == EventKind::kTaskReady) {
      if (!transfers_.Take(event.task)) compute_.Insert(event.task);
    } else if (event.kind == EventKind::kError) {
      compute_.Clear();
      transfers_.Clear();
    }
  }

  // What a lane does next; kit::Hold(): nothing until the next event. A task must be ready.
  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo)
      return transfers_.HeadIsReady() ? kit::Run(transfers_.Pop()) : kit::Hold();
    const uint32_t task = compute_.Pop();
    return task == kit::kNoTask ? kit::Hold() : kit::Run(task);
  }

 private:
  const int64_t fuse_bytes_;
  kit::ReadySet compute_;
  kit::TransferList transfers_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = DescribePlugin(
    {.name = "my_plugin",
     .version = "0.1.0",
     .kind = PluginKind::kScheduler,
     .doc = "sends gradients in the order in which they become ready",
     .create = kit::Create<InReadyOrder>},
    NoOps(),
    std::array{kit::IntOption("fuse_bytes", "65536", 0, 1 << 30,
                              "gradients travel together until they are so many bytes")});

}  // namespace engine
