// fifo_sched: sends each gradient as soon as it is ready, in the order in which gradients become
// ready; computes in order of arrival. A step takes F + max(B, C), and the time of the last bucket.
#include <cstdint>

#include "kit/bucket_planner.h"
#include "kit/options.h"
#include "kit/scheduler.h"

namespace engine::fifo_sched {
namespace {

// The order of transfers is the recorded order of readiness, not that of arrival: with several
// stages what becomes ready first depends on when transfers end, and that differs between ranks.
//
// With servers pushes go in that order and each pull is asked for as soon as it is ready, beside
// them: it costs the other direction of the link only, and no push waits for it, which is all that
// StaticTransferOrder asks for. All buckets have one priority, so servers answer in order of arrival.
class FifoScheduler final : public SchedulerBase {
 public:
  explicit FifoScheduler(const Options& options) noexcept
      : buckets_{.first_bytes = options.Int("first_bytes"),
                 .fuse_bytes = options.Int("fuse_bytes"),
                 .slice_bytes = options.Int("slice_bytes")} {}

  SchedulerTraits traits() const noexcept override { return {.order = TransferOrder::kStatic}; }

  Status Plan(const ModelInfo& model, PlanSink& sink) noexcept override {
    kit::BucketRules buckets = buckets_;
    buckets.fuse_bytes = kit::BytesFor(model, buckets.fuse_bytes, 4 << 20);
    return kit::PlanBuckets("fifo_sched", model, buckets, sink);
  }

  Status Begin(Array<const TaskInfo> tasks) noexcept override {
    return kit::NoThrow("fifo_sched", [&] {
      compute_.Reset(tasks.size());
      io_.Reset(tasks, kit::StaticTransferOrder(), [](const TaskInfo& task) {
        return kit::IsPull(task) ? kit::Standing::kFree : kit::Standing::kListed;
      });
    });
  }

  void On(const SchedulerEvent& event) noexcept override {
    if (event.kind == EventKind::kTaskReady && !io_.Take(event.task)) compute_.Push(event.task);
    if (event.kind == EventKind::kError) {
      compute_.Clear();
      io_.Clear();
    }
  }

  Action Next(Lane lane) noexcept override {
    if (lane == Lane::kIo && io_.HeadIsReady()) return kit::Run(io_.Pop());
    const uint32_t task = lane == Lane::kIo ? io_.PopFree() : compute_.Pop();
    return task == kit::kNoTask ? kit::Hold() : kit::Run(task);
  }

 private:
  const kit::BucketRules buckets_;
  kit::ReadyQueue compute_;
  kit::TransferList io_;
};

}  // namespace

extern "C" ENGINE_PLUGIN_EXPORT constexpr auto ENGINE_PLUGIN_SYMBOL = kit::DescribePlugin(
    PluginKind::kScheduler, "fifo_sched", "1.3.0",
    "sends each gradient as soon as it is ready, in ready order", kit::Create<FifoScheduler>,
    std::array{
        kit::IntOption("first_bytes", "1048576", 0, 1 << 30,
                       "like fuse_bytes, for the first bucket, if less: so that the first "
                       "transfer starts early"),
        kit::IntOption("fuse_bytes", "-1", kit::kByDevice, 1 << 30,
                       "gradients that become ready one after another travel together until "
                       "they are so many bytes; 0: each alone; -1: 4 MiB, on accelerators 32 MiB"),
        kit::IntOption("slice_bytes", "0", 0, 1 << 30,
                       "larger gradients travel in slices of about this size; 0: in one piece")});

}  // namespace engine::fifo_sched
